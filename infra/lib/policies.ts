// Least-privilege policies: one for each function and one for trainers.

import { Aws, CfnCondition, Fn } from "aws-cdk-lib";
import { Parameters } from "./parameters";

/** ARNs that policies name. */
export interface Arns {
  readonly table: string;
  readonly bucket: string;
  /** The bucket's objects in the stack's namespace. */
  readonly objects: (pattern: string) => string;
  readonly functions: (name: string) => string;
}

const document = (...statements: object[]) => ({ Version: "2012-10-17", Statement: statements });
const allow = (Sid: string, Action: string | string[], Resource: unknown, Condition?: object) => ({
  Sid,
  Effect: "Allow",
  Action,
  Resource,
  ...(Condition && { Condition }),
});
const when = (condition: CfnCondition, statement: object) => ({
  "Fn::If": [condition.logicalId, statement, { Ref: "AWS::NoValue" }],
});

export const assumedByLambda = document({
  Effect: "Allow",
  Action: "sts:AssumeRole",
  Principal: { Service: "lambda.amazonaws.com" },
});

const log = (logs: string) => allow("Log", ["logs:CreateLogStream", "logs:PutLogEvents"], logs);

const storageKey = (parameters: Parameters) =>
  when(
    parameters.hasStorageKey,
    allow("StorageKey", ["kms:Decrypt", "kms:GenerateDataKey"], parameters.storageKmsKeyArn.valueAsString),
  );

const readDatasets = (parameters: Parameters) => {
  const all = Fn.join("", [Fn.join("/*,", parameters.datasetBucketArns.valueAsList), "/*"]);
  return when(parameters.hasDatasets, allow("ReadDatasets", "s3:GetObject", Fn.split(",", all)));
};

const datasetKeys = (parameters: Parameters) =>
  when(parameters.hasDatasetKeys, allow("DatasetKeys", "kms:Decrypt", parameters.kmsKeyArns.valueAsList));

export function coordinatorPolicy(parameters: Parameters, arns: Arns, logs: string): object {
  return document(
    log(logs),
    allow("Items", ["dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:PutItem", "dynamodb:Query"], arns.table, {
      "ForAllValues:StringLike": { "dynamodb:LeadingKeys": `T#${parameters.namespace.valueAsString}#*` },
      Null: { "dynamodb:LeadingKeys": "false" },
    }),
    allow("ListingsAndManifests", ["s3:GetObject", "s3:PutObject"], arns.objects("datasets/*")),
    allow("CacheEntries", ["s3:GetObject", "s3:PutObject"], arns.objects("cache/*")),
    // Reasons of skipped records.
    allow("SkippedRecords", "s3:GetObject", arns.objects("quarantine/*")),
    allow("CollectChunks", "s3:DeleteObject", ["jobs/*", "cache/*", "quarantine/*"].map(arns.objects)),
    // Lists objects of failed attempts. Without a condition: S3 reports a missing object as 404 only with this
    // permission, else as 403, and s3:prefix is absent then.
    allow("FindOrphans", "s3:ListBucket", arns.bucket),
    allow("KickScaler", "lambda:InvokeFunction", arns.functions("scaler")),
    storageKey(parameters),
  );
}

export function workerPolicy(parameters: Parameters, arns: Arns, logs: string): object {
  return document(
    log(logs),
    // A function URL requires both permissions. The platform also uses the second, with this role, to report
    // a failed worker to the coordinator.
    allow(
      "CallCoordinator",
      ["lambda:InvokeFunctionUrl", "lambda:InvokeFunction"],
      ["coordinator", "coordinator:live"].map(arns.functions),
    ),
    allow("ListingsAndManifests", "s3:GetObject", arns.objects("datasets/*")),
    // Reads back an object to tell whether a refused put was its own earlier one.
    allow(
      "ChunksAndIndices",
      ["s3:GetObject", "s3:PutObject"],
      ["jobs/*", "cache/*", "index/*", "quarantine/*"].map(arns.objects),
    ),
    // Lists nothing; see the coordinator's FindOrphans.
    allow("KnowWhatIsAbsent", "s3:ListBucket", arns.bucket),
    storageKey(parameters),
    readDatasets(parameters),
    // As for the stack's bucket: a file that was deleted is 404, and not a refusal to be tried again.
    when(
      parameters.hasDatasets,
      allow("KnowWhichFilesAreAbsent", "s3:ListBucket", parameters.datasetBucketArns.valueAsList),
    ),
    datasetKeys(parameters),
  );
}

export function scalerPolicy(parameters: Parameters, arns: Arns, logs: string): object {
  const job = `T#${parameters.namespace.valueAsString}#J#*`;
  const metrics = `T#${parameters.namespace.valueAsString}#METRICS`;
  return document(
    log(logs),
    // Measurements of jobs for later ones are in ..#METRICS. The SCALE item is in the job's partition; items of workers that left are in partitions ..#L#.., read a
    // hundred at a time. Partitions of bundles (..#E#..) are not accessible.
    allow("ItsItem", ["dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:PutItem"], arns.table, {
      "ForAllValues:StringLike": { "dynamodb:LeadingKeys": [job, metrics] },
      "ForAllValues:StringNotLike": { "dynamodb:LeadingKeys": `${job}#E#*` },
      Null: { "dynamodb:LeadingKeys": "false" },
    }),
    allow("StartWorkers", "lambda:InvokeFunction", arns.functions("worker:*")),
  );
}

export function trainerPolicy(parameters: Parameters, arns: Arns): object {
  const coordinator = ["coordinator", "coordinator:live"].map(arns.functions);
  return document(
    allow("CallCoordinator", "lambda:InvokeFunctionUrl", coordinator),
    allow("ThroughItsUrlOnly", "lambda:InvokeFunction", coordinator, {
      Bool: { "lambda:InvokedViaFunctionUrl": "true" },
    }),
    when(
      parameters.letsTrainersInvoke,
      allow("WithoutItsUrl", "lambda:InvokeFunction", coordinator),
    ),
    allow("ReadChunks", "s3:GetObject", ["jobs/*", "datasets/*"].map(arns.objects)),
    // Local workers store chunks for all of several processes that train.
    when(
      parameters.letsTrainersStoreChunks,
      allow("StoreChunks", "s3:PutObject", arns.objects("jobs/*")),
    ),
    // Local workers index files, capture records and store cached data as remote ones do.
    allow(
      "IndicesCacheAndQuarantine",
      ["s3:GetObject", "s3:PutObject"],
      ["cache/*", "index/*", "quarantine/*"].map(arns.objects),
    ),
    // The list of a dataset's files, if it is too long for a call.
    allow("StoreListings", "s3:PutObject", arns.objects("datasets/*/listing.json")),
    allow("KnowWhatIsAbsent", "s3:ListBucket", arns.bucket),
    storageKey(parameters),
    when(
      parameters.hasDatasets,
      allow("ListDatasets", "s3:ListBucket", parameters.datasetBucketArns.valueAsList),
    ),
    readDatasets(parameters),
    datasetKeys(parameters),
  );
}

/** Bucket policy for all principals. */
export function bucketPolicy(arns: Arns): object {
  const deny = (Sid: string, Action: string, Resource: unknown, Condition: object) => ({
    Sid,
    Effect: "Deny",
    Principal: "*",
    Action,
    Resource,
    Condition,
  });
  return document(
    deny("TlsOnly", "s3:*", [arns.bucket, `${arns.bucket}/*`], { Bool: { "aws:SecureTransport": "false" } }),
    // Chunks, indices, listings and captured records are written once. Parts of a multipart upload carry no such header; its completion does.
    // Copying into these prefixes is not possible.
    deny("ChunksAreWrittenOnce", "s3:PutObject", ["jobs/*", "cache/*", "datasets/*", "index/*", "quarantine/*"].map(arns.objects), {
      Null: { "s3:if-none-match": "true" },
      Bool: { "s3:ObjectCreationOperation": "true" },
    }),
  );
}

export function arns(parameters: Parameters, table: string, bucket: string): Arns {
  return {
    table,
    bucket,
    objects: (pattern) => `${bucket}/t/${parameters.namespace.valueAsString}/${pattern}`,
    functions: (name) =>
      `arn:${Aws.PARTITION}:lambda:${Aws.REGION}:${Aws.ACCOUNT_ID}:function:${Aws.STACK_NAME}-${name}`,
  };
}
