// Parameters of a deployment: the same as in template.yaml, and values derived from them.

import { CfnCondition, CfnParameter, Fn } from "aws-cdk-lib";
import { Construct } from "constructs";

export class Parameters {
  readonly architecture: CfnParameter;
  readonly namespace: CfnParameter;
  readonly datasetBucketArns: CfnParameter;
  readonly kmsKeyArns: CfnParameter;
  readonly storageKmsKeyArn: CfnParameter;
  readonly workerMemory: CfnParameter;
  readonly workerConcurrency: CfnParameter;
  readonly coordinatorConcurrency: CfnParameter;
  readonly logRetentionDays: CfnParameter;
  readonly chunkRetentionDays: CfnParameter;
  readonly cacheGiB: CfnParameter;
  readonly scalerConcurrency: CfnParameter;
  readonly maxWorkers: CfnParameter;
  readonly allowPrivateSources: CfnParameter;
  readonly trainersStoreChunks: CfnParameter;
  readonly trainersInvoke: CfnParameter;
  readonly keptTable: CfnParameter;
  readonly keptBucket: CfnParameter;
  readonly alarmTopicArn: CfnParameter;
  readonly trainerTrust: CfnParameter;
  readonly systemLogLevel: CfnParameter;
  readonly accountConcurrency: CfnParameter;
  readonly warmReads: CfnParameter;
  readonly warmWrites: CfnParameter;
  readonly hasDatasets: CfnCondition;
  readonly hasDatasetKeys: CfnCondition;
  readonly hasStorageKey: CfnCondition;
  readonly limitsWorkers: CfnCondition;
  readonly limitsCoordinator: CfnCondition;
  readonly limitsScaler: CfnCondition;
  readonly makesTable: CfnCondition;
  readonly makesBucket: CfnCondition;
  readonly hasAlarmTopic: CfnCondition;
  readonly makesTrainerRole: CfnCondition;
  readonly letsTrainersStoreChunks: CfnCondition;
  readonly letsTrainersInvoke: CfnCondition;
  readonly warmsTable: CfnCondition;

  constructor(scope: Construct) {
    this.architecture = new CfnParameter(scope, "Architecture", {
      default: "arm64",
      allowedValues: ["arm64", "x86_64"],
      description: "Processor architecture of the functions, the same as the trainers'. arm64 costs a fifth less per GB-second.",
    });
    this.namespace = new CfnParameter(scope, "Namespace", {
      default: "default",
      allowedPattern: "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$",
      constraintDescription: "1 to 32 of a-z, 0-9 and '-', not at either end",
      description: "First part of every key in table and bucket.",
    });
    this.datasetBucketArns = new CfnParameter(scope, "DatasetBucketArns", {
      type: "CommaDelimitedList",
      default: "",
      description:
        "ARNs of the buckets that hold datasets, separated by commas (arn:aws:s3:::name). Workers and trainers may read these and no others.",
    });
    this.kmsKeyArns = new CfnParameter(scope, "KmsKeyArns", {
      type: "CommaDelimitedList",
      default: "",
      description: "ARNs of the KMS keys that datasets are encrypted with, separated by commas; empty if none are.",
    });
    this.storageKmsKeyArn = new CfnParameter(scope, "StorageKmsKeyArn", {
      default: "",
      allowedPattern: "^$|^arn:[a-z0-9-]+:kms:[a-z0-9-]+:[0-9]{12}:key/.+$",
      constraintDescription: "empty, or the ARN of a KMS key",
      description: "KMS key for the bucket of chunks; empty for keys that S3 manages (SSE-S3), which cost nothing.",
    });
    this.workerMemory = new CfnParameter(scope, "WorkerMemory", {
      type: "Number",
      default: 1769,
      minValue: 512,
      maxValue: 10240,
      description: "MB of a worker; 1769 is one vCPU. New accounts are limited to 3008.",
    });
    this.workerConcurrency = new CfnParameter(scope, "WorkerConcurrency", {
      type: "Number",
      default: 0,
      minValue: 0,
      description:
        "Most workers at a time over all jobs, reserved from the account's concurrency; 0 reserves nothing and leaves the account's limit.",
    });
    this.coordinatorConcurrency = new CfnParameter(scope, "CoordinatorConcurrency", {
      type: "Number",
      default: 0,
      minValue: 0,
      description: "Most concurrent coordinator calls, reserved from the account's concurrency; 0 reserves nothing. Each serves 10 requests a second. scripts/deploy reserves a sixth of MaxWorkers, at least 20, if the account allows it.",
    });
    this.scalerConcurrency = new CfnParameter(scope, "ScalerConcurrency", {
      type: "Number",
      default: 0,
      minValue: 0,
      description:
        "Most concurrent scaler calls, reserved from the account's concurrency; 0 reserves nothing. scripts/deploy reserves 5 if the account allows it.",
    });
    this.maxWorkers = new CfnParameter(scope, "MaxWorkers", {
      type: "Number",
      default: 0,
      minValue: 0,
      description:
        "Most workers of one job, so that coordinator, scaler and other functions of the account can always run; 0 is no limit. scripts/deploy derives it from the account's limit.",
    });
    this.accountConcurrency = new CfnParameter(scope, "AccountConcurrency", {
      type: "Number",
      default: 0,
      minValue: 0,
      description:
        "Unreserved concurrency of the account, as scripts/deploy last divided it; if it changes, the next run divides it anew.",
    });
    this.warmReads = new CfnParameter(scope, "WarmReads", {
      type: "Number",
      default: 12000,
      minValue: 12000,
      description:
        "Read units a second that the table serves at once; a new table serves 12,000. AWS charges an increase, and does not decrease it. scripts/deploy derives it from MaxWorkers.",
    });
    this.warmWrites = new CfnParameter(scope, "WarmWrites", {
      type: "Number",
      default: 4000,
      minValue: 4000,
      description: "Write units a second that the table serves at once; a new table serves 4,000. As WarmReads.",
    });
    this.allowPrivateSources = new CfnParameter(scope, "AllowPrivateSources", {
      type: "String",
      default: "false",
      allowedValues: ["true", "false"],
      description:
        "Whether workers also read https:// sources from private addresses. By default only from public ones, so that a dataset's name cannot reach services inside the account.",
    });
    this.trainersStoreChunks = new CfnParameter(scope, "TrainersStoreChunks", {
      type: "String",
      default: "false",
      allowedValues: ["true", "false"],
      description:
        "Whether trainers may store chunks, and not only read them. Local workers of a training run with several trainer processes need it.",
    });
    this.trainersInvoke = new CfnParameter(scope, "TrainersInvoke", {
      type: "String",
      default: "false",
      allowedValues: ["true", "false"],
      description:
        "Whether trainers may also call the coordinator through Lambda's endpoint, by its ARN. Trainers in a subnet without internet need it.",
    });
    this.logRetentionDays = new CfnParameter(scope, "LogRetentionDays", {
      type: "Number",
      default: "14",
      allowedValues: [1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731].map(String),
      description: "Days for which logs of the functions are kept.",
    });
    this.chunkRetentionDays = new CfnParameter(scope, "ChunkRetentionDays", {
      type: "Number",
      default: 14,
      minValue: 2,
      maxValue: 3650,
      description:
        "Days after which a chunk is deleted even if it was not consumed. A job that pauses longer cannot resume.",
    });
    this.cacheGiB = new CfnParameter(scope, "CacheGiB", {
      type: "Number",
      default: 1024,
      minValue: 1,
      maxValue: 1048576,
      description:
        "GiB that caches may store in the bucket; the least useful entries are removed first.",
    });
    this.keptTable = new CfnParameter(scope, "KeptTable", {
      default: "",
      description: "Table of an earlier stack to continue with; empty creates one.",
    });
    this.keptBucket = new CfnParameter(scope, "KeptBucket", {
      default: "",
      description: "Bucket of an earlier stack to continue with; empty creates one.",
    });
    this.alarmTopicArn = new CfnParameter(scope, "AlarmTopicArn", {
      default: "",
      allowedPattern: "^$|^arn:[a-z0-9-]+:sns:[a-z0-9-]+:[0-9]{12}:.+$",
      constraintDescription: "empty, or the ARN of an SNS topic",
      description: "SNS topic that receives alarms; if empty, they are visible in CloudWatch only.",
    });
    this.trainerTrust = new CfnParameter(scope, "TrainerTrust", {
      default: "",
      description:
        "Trust policy (JSON) of a role for trainers, which they may assume for 12 hours; if empty, there is no such role. scripts/deploy --trainer writes it.",
    });
    this.systemLogLevel = new CfnParameter(scope, "SystemLogLevel", {
      default: "WARN",
      allowedValues: ["DEBUG", "INFO", "WARN"],
      description:
        "Lambda's own lines in the functions' logs. INFO adds some for each call, with its duration and start-up time.",
    });
    const isNot = (id: string, value: CfnParameter | string, other: string) =>
      new CfnCondition(scope, id, {
        expression: Fn.conditionNot(
          Fn.conditionEquals(typeof value === "string" ? value : value.value, other),
        ),
      });
    this.hasDatasets = isNot("HasDatasets", Fn.join("", this.datasetBucketArns.valueAsList), "");
    this.hasDatasetKeys = isNot("HasDatasetKeys", Fn.join("", this.kmsKeyArns.valueAsList), "");
    this.hasStorageKey = isNot("HasStorageKey", this.storageKmsKeyArn, "");
    this.limitsWorkers = isNot("LimitsWorkers", this.workerConcurrency, "0");
    this.limitsCoordinator = isNot("LimitsCoordinator", this.coordinatorConcurrency, "0");
    this.limitsScaler = isNot("LimitsScaler", this.scalerConcurrency, "0");
    this.hasAlarmTopic = isNot("HasAlarmTopic", this.alarmTopicArn, "");
    this.makesTrainerRole = isNot("MakesTrainerRole", this.trainerTrust, "");
    const is = (id: string, value: CfnParameter, other: string) =>
      new CfnCondition(scope, id, { expression: Fn.conditionEquals(value.value, other) });
    this.makesTable = is("MakesTable", this.keptTable, "");
    this.makesBucket = is("MakesBucket", this.keptBucket, "");
    this.warmsTable = new CfnCondition(scope, "WarmsTable", {
      expression: Fn.conditionNot(
        Fn.conditionAnd(
          Fn.conditionEquals(this.warmReads.value, "12000"),
          Fn.conditionEquals(this.warmWrites.value, "4000"),
        ),
      ),
    });
    this.letsTrainersStoreChunks = is("LetsTrainersStoreChunks", this.trainersStoreChunks, "true");
    this.letsTrainersInvoke = is("LetsTrainersInvoke", this.trainersInvoke, "true");
  }
}
