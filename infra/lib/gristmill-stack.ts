// gristmill's stack: three functions, a table, a bucket. The same as template.yaml, resource by
// resource; scripts/compare-templates compares the two.
//
// References run one way: coordinator <- worker <- its version <- scaler. The one reference back,
// coordinator -> scaler, is a name made from the stack's name.

import {
  Aws,
  CfnCondition,
  CfnDeletionPolicy,
  CfnOutput,
  CfnResource,
  Duration,
  Fn,
  RemovalPolicy,
  Stack,
  StackProps,
  Token,
  aws_cloudwatch as cloudwatch,
  aws_dynamodb as dynamodb,
  aws_iam as iam,
  aws_events as events,
  aws_lambda as lambda,
  aws_logs as logs,
  aws_s3 as s3,
} from "aws-cdk-lib";
import { Construct } from "constructs";
import * as fs from "node:fs";
import * as path from "node:path";
import { Parameters } from "./parameters";
import * as policies from "./policies";

export interface GristmillProps extends StackProps {
  /** Directory of the built functions, as `sam build` leaves them: FUNCTION/bootstrap. */
  readonly build: string;
}

interface FunctionProps {
  readonly description: string;
  readonly policy: (logs: string) => object;
  readonly memory: number;
  readonly timeout: number;
  readonly concurrency?: unknown;
  readonly environment: Record<string, string>;
}

/** Metric of rejected requests, and description. */
const TABLE_ALARMS: [string, string, string][] = [
  ["TableReadThrottles", "ReadThrottleEvents", "gristmill table rejected reads for a quarter of an hour: use fewer workers, or raise WarmReads"],
  ["TableWriteThrottles", "WriteThrottleEvents", "gristmill table rejected writes for a quarter of an hour: use fewer workers, or raise WarmWrites"],
];

/** Function, metric, statistic, threshold, number of 5 minute periods, and description. */
const ALARMS: [string, string, string, string, number, number, string][] = [
  ["CoordinatorErrors", "coordinator", "Errors", "Sum", 1, 1, "gristmill coordinator failed: see its log"],
  ["CoordinatorThrottles", "coordinator", "Throttles", "Sum", 10, 1, "gristmill coordinator was throttled: reserve concurrency for it, or use fewer workers"],
  ["ScalerErrors", "scaler", "Errors", "Sum", 1, 1, "gristmill scaler failed: see its log"],
  ["WorkerThrottles", "worker", "Throttles", "Sum", 10, 3, "gristmill workers were throttled for a quarter of an hour: use fewer workers, or more concurrency"],
  ["WorkerDuration", "worker", "Duration", "Maximum", 840000, 1, "gristmill worker ran for 14 of its 15 minutes: its splits are too large for its memory"],
  ["WorkerReportsLost", "worker", "DestinationDeliveryFailures", "Sum", 1, 1, "gristmill worker failed and the coordinator was not notified: its splits wait until they are missed"],
  ["WorkerEventsDropped", "worker", "AsyncEventsDropped", "Sum", 1, 1, "gristmill worker was not started within 60 s: concurrency is too small"],
];

export class GristmillStack extends Stack {
  private readonly parameters: Parameters;
  private readonly build: string;

  constructor(scope: Construct, id: string, props: GristmillProps) {
    super(scope, id, props);
    this.build = props.build;
    const parameters = new Parameters(this);
    this.parameters = parameters;
    const { table, bucket, arns } = this.stored();
    const bucketPolicy = new s3.CfnBucketPolicy(this, "BucketPolicy", {
      bucket,
      policyDocument: policies.bucketPolicy(arns),
    });
    keep(bucketPolicy);

    const coordinator = this.function("Coordinator", {
      description: "Registers jobs, hands out splits, accepts commits",
      policy: (logs) => policies.coordinatorPolicy(parameters, arns, logs),
      memory: 512,
      timeout: 30,
      concurrency: unless0(parameters.limitsCoordinator.logicalId, parameters.coordinatorConcurrency.value),
      environment: {
        GRISTMILL_TABLE: table,
        GRISTMILL_BUCKET: bucket,
        GRISTMILL_SCALER_FUNCTION: `${Aws.STACK_NAME}-scaler`,
        GRISTMILL_RETENTION_DAYS: parameters.chunkRetentionDays.valueAsString,
        GRISTMILL_CACHE_GIB: parameters.cacheGiB.valueAsString,
      },
    });
    const live = alias(coordinator);
    // Stops jobs without a trainer and deletes leftovers of jobs.
    const upkeep = new events.CfnRule(this, "CoordinatorFunctionUpkeep", {
      description: "Background maintenance by the coordinator",
      scheduleExpression: "rate(15 minutes)",
      targets: [{ id: "CoordinatorFunctionUpkeepLambdaTarget", arn: live.ref, input: '{"upkeep":true}' }],
    });
    new lambda.CfnPermission(this, "CoordinatorFunctionUpkeepPermission", {
      action: "lambda:InvokeFunction",
      functionName: live.ref,
      principal: "events.amazonaws.com",
      sourceArn: upkeep.attrArn,
    });
    const url = new lambda.CfnUrl(this, "CoordinatorFunctionUrl", { targetFunctionArn: live.ref, authType: "AWS_IAM" });

    const worker = this.function("Worker", {
      description: "Claims bundles of splits and preprocesses them into objects",
      policy: (logs) => policies.workerPolicy(parameters, arns, logs),
      memory: parameters.workerMemory.valueAsNumber,
      timeout: 900,
      concurrency: unless0(parameters.limitsWorkers.logicalId, parameters.workerConcurrency.value),
      environment: {
        GRISTMILL_BUCKET: bucket,
        GRISTMILL_COORDINATOR_URL: url.attrFunctionUrl,
        GRISTMILL_PRIVATE_SOURCES: parameters.allowPrivateSources.valueAsString,
      },
    });
    // No retries: the scaler counts workers and replaces lost ones. Settings of an alias do not apply to
    // calls by version, so the version has its own, which jobs of an older version keep.
    const workerEvents = {
      functionName: worker.functionName,
      maximumRetryAttempts: 0,
      maximumEventAgeInSeconds: 60,
      destinationConfig: { onFailure: { destination: live.ref } },
    };
    const workerAlias = alias(worker);
    new lambda.CfnEventInvokeConfig(this, "WorkerEvents", {
      ...workerEvents,
      qualifier: "live",
    }).addResourceDependency(workerAlias);
    const pinned = new lambda.CfnEventInvokeConfig(this, "WorkerVersionEvents", {
      ...workerEvents,
      qualifier: worker.currentVersion.version,
    });
    pinned.cfnOptions.deletionPolicy = CfnDeletionPolicy.DELETE;
    pinned.cfnOptions.updateReplacePolicy = CfnDeletionPolicy.RETAIN;
    const workerVersion = (worker.currentVersion.node.defaultChild as CfnResource).ref;

    const scaler = this.function("Scaler", {
      description: "Invokes workers up to the target",
      policy: (logs) => policies.scalerPolicy(parameters, arns, logs),
      memory: 256,
      timeout: 60,
      concurrency: unless0(parameters.limitsScaler.logicalId, parameters.scalerConcurrency.value),
      environment: {
        GRISTMILL_TABLE: table,
        // With the version, which a job pins.
        GRISTMILL_WORKER_FUNCTION: workerVersion,
        GRISTMILL_MAX_WORKERS: parameters.maxWorkers.valueAsString,
      },
    });
    // It names a version: none that would be tried again, or whose failures nobody hears of.
    (scaler.node.defaultChild as CfnResource).addDependency(pinned);
    new lambda.CfnEventInvokeConfig(this, "ScalerEvents", {
      functionName: scaler.functionName,
      qualifier: "$LATEST",
      maximumRetryAttempts: 0,
      maximumEventAgeInSeconds: 60,
    });

    this.alarms(table);

    const trainer = new iam.CfnManagedPolicy(this, "TrainerPolicy", {
      description: "gristmill trainer - attach it to the role that training runs with",
      policyDocument: policies.trainerPolicy(parameters, arns),
    });
    // For trainers without a role of this account: in another account, or on a GPU cloud. A role of the account needs
    // no permission of the function to call its URL.
    const trainerRole = new iam.CfnRole(this, "TrainerRole", {
      description: "gristmill trainer",
      assumeRolePolicyDocument: parameters.trainerTrust.valueAsString,
      maxSessionDuration: 43200,
      managedPolicyArns: [trainer.ref],
    });
    trainerRole.cfnOptions.condition = parameters.makesTrainerRole;

    const output = (id: string, description: string, value: string) =>
      new CfnOutput(this, `${id}Output`, { description, value }).overrideLogicalId(id);
    output("Namespace", "GRISTMILL_NAMESPACE of a trainer", parameters.namespace.valueAsString);
    output("CoordinatorUrl", "GRISTMILL_COORDINATOR_URL of a trainer", url.attrFunctionUrl);
    output("CoordinatorArn", "GRISTMILL_COORDINATOR_URL of a trainer that reaches Lambda's endpoint only (TrainersInvoke)", `arn:${Aws.PARTITION}:lambda:${Aws.REGION}:${Aws.ACCOUNT_ID}:function:${Aws.STACK_NAME}-coordinator:live`);
    output("BucketName", "GRISTMILL_BUCKET of a trainer", bucket);
    output("TableName", "GRISTMILL_TABLE, for inspecting the stack; trainers do not need it", table);
    output("WorkerFunctionName", "GRISTMILL_WORKER_FUNCTION, likewise", workerVersion);
    output("ScalerFunctionName", "GRISTMILL_SCALER_FUNCTION, likewise", `${Aws.STACK_NAME}-scaler`);
    output("AccountConcurrency", "Unreserved concurrency of the account that MaxWorkers and the reservations were derived from; 0 if they were not", parameters.accountConcurrency.valueAsString);
    output("WorkerShape", "GRISTMILL_WORKER_SHAPE of a trainer, by which it knows what workers cost", Fn.sub("${WorkerMemory}/${Architecture}"));
    output("WorkerRoleArn", "Role of the workers, for the policy of a bucket or key of another account", worker.role!.roleArn);
    output("TrainerPolicyArn", "Attach this policy to the role that training runs with", trainer.ref);
    new CfnOutput(this, "TrainerRoleArnOutput", {
      condition: parameters.makesTrainerRole,
      description: "Role for trainers that TrainerTrust names",
      value: trainerRole.attrArn,
    }).overrideLogicalId("TrainerRoleArn");
  }

  /** Table and bucket: those that an earlier stack left, or new ones. */
  private stored(): { table: string; bucket: string; arns: policies.Arns } {
    const { keptTable, keptBucket, makesTable, makesBucket } = this.parameters;
    const table = this.table();
    table.cfnOptions.condition = makesTable;
    const bucket = this.bucket();
    bucket.cfnOptions.condition = makesBucket;
    const either = (condition: CfnCondition, made: string, kept: string): string =>
      Fn.conditionIf(condition.logicalId, made, kept).toString();
    const keptTableArn = `arn:${Aws.PARTITION}:dynamodb:${Aws.REGION}:${Aws.ACCOUNT_ID}:table/${keptTable.valueAsString}`;
    const keptBucketArn = `arn:${Aws.PARTITION}:s3:::${keptBucket.valueAsString}`;
    return {
      table: either(makesTable, table.ref, keptTable.valueAsString),
      bucket: either(makesBucket, bucket.ref, keptBucket.valueAsString),
      arns: policies.arns(
        this.parameters,
        either(makesTable, table.attrArn, keptTableArn),
        either(makesBucket, bucket.attrArn, keptBucketArn),
      ),
    };
  }

  /** Alarms, sent to a topic if there is one. */
  private alarms(table: string): void {
    const { hasAlarmTopic, alarmTopicArn } = this.parameters;
    const actions = Fn.conditionIf(hasAlarmTopic.logicalId, [alarmTopicArn.valueAsString], { Ref: "AWS::NoValue" });
    const alarm = (id: string, props: Partial<cloudwatch.CfnAlarmProps>) =>
      new cloudwatch.CfnAlarm(this, id, {
        period: 300,
        comparisonOperator: "GreaterThanOrEqualToThreshold",
        treatMissingData: "notBreaching",
        evaluationPeriods: 3,
        statistic: "Sum",
        ...props,
      }).addPropertyOverride("AlarmActions", actions);
    for (const [id, name, metric, statistic, threshold, periods, description] of ALARMS) {
      alarm(id, {
        alarmDescription: description,
        namespace: "AWS/Lambda",
        metricName: metric,
        dimensions: [{ name: "FunctionName", value: `${Aws.STACK_NAME}-${name}` }],
        statistic,
        evaluationPeriods: periods,
        threshold,
      });
    }
    for (const [id, metric, description] of TABLE_ALARMS) {
      alarm(id, {
        alarmDescription: description,
        namespace: "AWS/DynamoDB",
        metricName: metric,
        dimensions: [{ name: "TableName", value: table }],
        threshold: 100,
      });
    }
  }

  private table(): dynamodb.CfnTable {
    const table = new dynamodb.CfnTable(this, "Table", {
      billingMode: "PAY_PER_REQUEST",
      attributeDefinitions: [
        { attributeName: "pk", attributeType: "S" },
        { attributeName: "sk", attributeType: "S" },
      ],
      keySchema: [
        { attributeName: "pk", keyType: "HASH" },
        { attributeName: "sk", keyType: "RANGE" },
      ],
      timeToLiveSpecification: { attributeName: "ttl", enabled: true },
      pointInTimeRecoverySpecification: { pointInTimeRecoveryEnabled: true },
      sseSpecification: { sseEnabled: true },
    });
    const { warmsTable, warmReads, warmWrites } = this.parameters;
    const warm = { ReadUnitsPerSecond: warmReads.valueAsNumber, WriteUnitsPerSecond: warmWrites.valueAsNumber };
    table.addPropertyOverride("WarmThroughput", Fn.conditionIf(warmsTable.logicalId, warm, { Ref: "AWS::NoValue" }));
    keep(table);
    return table;
  }

  private bucket(): s3.CfnBucket {
    const parameters = this.parameters;
    const bucket = new s3.CfnBucket(this, "Bucket", {
      publicAccessBlockConfiguration: {
        blockPublicAcls: true,
        blockPublicPolicy: true,
        ignorePublicAcls: true,
        restrictPublicBuckets: true,
      },
      ownershipControls: { rules: [{ objectOwnership: "BucketOwnerEnforced" }] },
      bucketEncryption: {
        serverSideEncryptionConfiguration: [
          Fn.conditionIf(
            parameters.hasStorageKey.logicalId,
            {
              BucketKeyEnabled: true,
              ServerSideEncryptionByDefault: {
                SSEAlgorithm: "aws:kms",
                KMSMasterKeyID: parameters.storageKmsKeyArn.valueAsString,
              },
            },
            { ServerSideEncryptionByDefault: { SSEAlgorithm: "AES256" } },
          ),
        ],
      },
      lifecycleConfiguration: {
        rules: [
          // Chunks are deleted when consumed. This rule deletes those of stopped jobs, and orphans.
          {
            id: "chunks",
            status: "Enabled",
            prefix: `t/${parameters.namespace.valueAsString}/jobs/`,
            expirationInDays: parameters.chunkRetentionDays.valueAsNumber,
          },
          {
            id: "unfinished-uploads",
            status: "Enabled",
            abortIncompleteMultipartUpload: { daysAfterInitiation: 1 },
          },
          // If versioning is switched on, by hand or by a rule of the organisation, it would keep all that is deleted.
          {
            id: "old-versions",
            status: "Enabled",
            noncurrentVersionExpiration: { noncurrentDays: 1 },
            expiredObjectDeleteMarker: true,
          },
        ],
      },
    });
    keep(bucket);
    return bucket;
  }

  /** A function with its role and its logs. */
  private function(name: string, props: FunctionProps): lambda.Function {
    const functionName = `${Aws.STACK_NAME}-${name.toLowerCase()}`;
    const logGroup = new logs.CfnLogGroup(this, `${name}Logs`, {
      logGroupName: `/aws/lambda/${functionName}`,
      retentionInDays: this.parameters.logRetentionDays.valueAsNumber,
    });
    logGroup.applyRemovalPolicy(RemovalPolicy.DESTROY);
    const role = new iam.CfnRole(this, `${name}Role`, {
      description: `gristmill ${name.toLowerCase()}`,
      assumeRolePolicyDocument: policies.assumedByLambda,
      policies: [{ policyName: name.toLowerCase(), policyDocument: props.policy(logGroup.attrArn) }],
    });
    const code = path.join(this.build, `${name}Function`);
    if (!fs.existsSync(path.join(code, "bootstrap"))) {
      throw new Error(`${code}/bootstrap is not there: run \`sam build\` first, or name its directory with -c build=DIR`);
    }
    const made = new lambda.Function(this, `${name}Function`, {
      functionName,
      description: props.description,
      code: lambda.Code.fromAsset(code),
      handler: "bootstrap",
      runtime: lambda.Runtime.PROVIDED_AL2023,
      architecture: lambda.Architecture.custom(this.parameters.architecture.valueAsString),
      role: iam.Role.fromRoleArn(this, `${name}RoleRef`, role.attrArn),
      memorySize: props.memory,
      timeout: Duration.seconds(props.timeout),
      environment: {
        GRISTMILL_NAMESPACE: this.parameters.namespace.valueAsString,
        GRISTMILL_METRICS: "emf",
        ...props.environment,
      },
      currentVersionOptions: { removalPolicy: RemovalPolicy.RETAIN },
    });
    const inner = made.node.defaultChild as lambda.CfnFunction;
    inner.loggingConfig = { logGroup: logGroup.ref, logFormat: "JSON", systemLogLevel: this.parameters.systemLogLevel.valueAsString };
    if (props.concurrency) {
      inner.reservedConcurrentExecutions = Token.asNumber(props.concurrency);
    }
    return made;
  }
}

/** The alias `live`: the version that calls without a version reach. */
function alias(of: lambda.Function): lambda.CfnAlias {
  return new lambda.CfnAlias(of, "Live", {
    name: "live",
    functionName: of.functionName,
    functionVersion: of.currentVersion.version,
  });
}

/** State that a trainer resumes from outlives the stack. */
function keep(resource: CfnResource): void {
  resource.applyRemovalPolicy(RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE);
}

function unless0(condition: string, value: unknown): unknown {
  return Fn.conditionIf(condition, value, { Ref: "AWS::NoValue" });
}
