"""An AWS account in a file, with the commands of `aws` and `sam` that scripts/deploy and scripts/teardown use.

It answers as AWS does where emulators do not: buckets of all regions are listed, reservations leave 100 calls, a
bucket's policy that exists is in a new stack's way. Queries are evaluated. Every call that changes something is noted.
"""

import fcntl
import json
import os
import pathlib
import re
import sys

import jmespath

STATE = "STAND_IN_STATE"
ACCOUNT = "123456789012"


class Refused(Exception):
    pass


def options(words):
    """Options by name; several values of one, as --parameter-overrides has, are a list."""
    found, name = {}, None
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            found[name] = []
        elif name:
            found[name].append(word)
    return found


def overrides(words):
    """Parameters as SAM reads them: a value with quotes or without content must be quoted."""
    found = {}
    for word in words:
        name, value = word.split("=", 1)
        quoted = re.fullmatch(r'"((?:\\.|[^"\\])*)"', value)
        if not quoted and not re.fullmatch(r'[^ "\\]+', value):
            sys.exit(f"Error: Invalid value for '--parameter-overrides': {word} is not a valid format")
        found[name] = quoted.group(1).replace('\\"', '"') if quoted else value
    return found


class Cloud:
    def __init__(self, state):
        self.state = state
        self.region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")

    @property
    def here(self):
        empty = {"stacks": {}, "tables": [], "concurrency": 1000, "reserved": {}}
        return self.state["regions"].setdefault(self.region, empty)

    def change(self, what):
        self.state["changes"].append(what)

    def bucket(self, name):
        if name not in self.state["buckets"]:
            raise Refused(f"An error occurred (404) when calling the HeadBucket operation: Not Found {name}")
        return self.state["buckets"][name]

    def described(self, name):
        stack = self.here["stacks"][name]
        as_list = lambda key, value, of: [{key: k, value: v} for k, v in of.items()]  # noqa: E731
        return {
            "StackName": name,
            "StackStatus": stack["status"],
            "Parameters": as_list("ParameterKey", "ParameterValue", stack["parameters"]),
            "Outputs": as_list("OutputKey", "OutputValue", stack["outputs"]),
            "Tags": as_list("Key", "Value", stack.get("tags", {})),
        }

    # ---- calls, by service and operation

    def sts_get_caller_identity(self, _):
        return {"Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:user/somebody"}

    def sts_assume_role(self, given):
        return {"Credentials": {"AccessKeyId": "ASIAKEY", "SecretAccessKey": "secret", "SessionToken": "token"}}

    def cloudformation_describe_stacks(self, given):
        names = given.get("stack-name") or list(self.here["stacks"])
        for name in names:
            if name not in self.here["stacks"]:
                raise Refused(f"(ValidationError) Stack with id {name} does not exist")
        return {"Stacks": [self.described(name) for name in names]}

    def cloudformation_describe_stack_resources(self, given):
        wanted = given["physical-resource-id"][0]
        for name, stack in self.here["stacks"].items():
            if wanted in stack["made"]:
                kind = "AWS::S3::Bucket" if wanted in self.state["buckets"] else "AWS::DynamoDB::Table"
                return {
                    "StackResources": [
                        {
                            "StackName": name,
                            "PhysicalResourceId": wanted,
                            "ResourceType": kind,
                            "ResourceStatus": "CREATE_COMPLETE",
                        }
                    ]
                }
        raise Refused(f"(ValidationError) Stack for {wanted} does not exist")

    def cloudformation_delete_stack(self, given):
        name = given["stack-name"][0]
        self.change(f"delete-stack {name}")
        del self.here["stacks"][name]
        self.here["reserved"].pop(name, None)

    def cloudformation_wait(self, _):
        return None

    def cloudformation_describe_stack_events(self, _):
        return {"StackEvents": []}

    def lambda_get_account_settings(self, _):
        limit = self.here["concurrency"]
        reserved = sum(self.here["reserved"].values())
        return {"AccountLimit": {"ConcurrentExecutions": limit, "UnreservedConcurrentExecutions": limit - reserved}}

    def lambda_get_function(self, _):
        raise Refused("(ResourceNotFoundException) Function not found")

    def lambda_invoke(self, given):
        self.change(f"invoke {given['function-name'][0]} {given['invocation-type'][0]}")

    def logs_filter_log_events(self, given):
        report = {"durationMs": 12.5, "billedDurationMs": 80, "memorySizeMB": 512, "maxMemoryUsedMB": 30, "initDurationMs": 60.5}
        return {"events": [{"message": json.dumps({"type": "platform.report", "record": {"metrics": report}})}]}

    def cloudwatch_get_metric_statistics(self, given):
        return {"Datapoints": [{"Sum": 5.0}]}

    def dynamodb_list_tables(self, _):
        return {"TableNames": self.here["tables"]}

    def dynamodb_describe_table(self, given):
        if given["table-name"][0] not in self.here["tables"]:
            raise Refused("(ResourceNotFoundException) Requested resource not found")
        return {"Table": {}}

    def dynamodb_delete_table(self, given):
        self.change(f"delete-table {given['table-name'][0]}")
        self.here["tables"].remove(given["table-name"][0])

    def dynamodb_wait(self, _):
        return None

    def s3api_list_buckets(self, given):
        region = given.get("bucket-region", [None])[0]
        all_buckets = self.state["buckets"].items()
        listed = [{"Name": name, "BucketRegion": of["region"]} for name, of in all_buckets]
        return {"Buckets": [each for each in listed if region in (None, each["BucketRegion"])]}

    def s3api_create_bucket(self, given):
        self.change(f"create-bucket {given['bucket'][0]}")
        self.state["buckets"][given["bucket"][0]] = {"region": self.region, "policy": None, "objects": []}

    def s3_cp(self, _):
        return None

    def s3_rb(self, given):
        name = given["force"][0].removeprefix("s3://")
        self.change(f"delete-bucket {name}")
        del self.state["buckets"][name]

    def s3api_head_bucket(self, given):
        of = self.bucket(given["bucket"][0])
        if of.get("owner", ACCOUNT) not in given.get("expected-bucket-owner", [of.get("owner", ACCOUNT)]):
            raise Refused("(403) when calling the HeadBucket operation: Forbidden")
        return {"BucketRegion": of["region"]}

    def s3api_get_bucket_policy(self, given):
        policy = self.bucket(given["bucket"][0])["policy"]
        if policy is None:
            raise Refused("(NoSuchBucketPolicy) The bucket policy does not exist")
        return {"Policy": policy}

    def s3api_put_bucket_policy(self, given):
        self.change(f"put-bucket-policy {given['bucket'][0]}")
        self.bucket(given["bucket"][0])["policy"] = given["policy"][0]

    def s3api_delete_bucket_policy(self, given):
        self.change(f"delete-bucket-policy {given['bucket'][0]}")
        self.bucket(given["bucket"][0])["policy"] = None

    def s3api_list_object_versions(self, given):
        prefix = (given["prefix"] or [""])[0]
        objects = [o for o in self.bucket(given["bucket"][0])["objects"] if o["Key"].startswith(prefix)]
        objects = objects[: int(given["max-items"][0])]
        listed = {"Versions": [o for o in objects if not o.get("marker")]}
        markers = [{"Key": o["Key"], "VersionId": o["VersionId"]} for o in objects if o.get("marker")]
        return {**listed, "DeleteMarkers": markers} if markers else listed

    def s3api_delete_objects(self, given):
        name = given["bucket"][0]
        page = json.loads(pathlib.Path(given["delete"][0].removeprefix("file://")).read_text())["Objects"]
        if len(page) > 1000:
            raise Refused("(MalformedXML) more than 1000 keys")
        self.change(f"delete-objects {name} {len(page)}")
        gone = {(each["Key"], each["VersionId"]) for each in page}
        of = self.bucket(name)
        locked = [o for o in of["objects"] if o.get("locked") and (o["Key"], o["VersionId"]) in gone]
        of["objects"] = [o for o in of["objects"] if (o["Key"], o["VersionId"]) not in gone or o in locked]
        return {"Errors": [{"Key": o["Key"], "Message": "Access Denied"} for o in locked]} if locked else None

    def s3api_delete_bucket(self, given):
        name = given["bucket"][0]
        if self.bucket(name)["objects"]:
            raise Refused("(BucketNotEmpty) The bucket you tried to delete is not empty")
        self.change(f"delete-bucket {name}")
        del self.state["buckets"][name]

    def budgets_create_budget(self, given):
        budget = json.loads(given["budget"][0])
        notices = json.loads(given["notifications-with-subscribers"][0])
        self.change(f"create-budget {budget['BudgetName']}")
        self.state.setdefault("budgets", {})[budget["BudgetName"]] = {"budget": budget, "notices": notices}

    def budgets_delete_budget(self, given):
        if self.state.setdefault("budgets", {}).pop(given["budget-name"][0], None) is None:
            raise Refused("(NotFoundException) Unable to get budget: it doesn't exist")

    def logs_describe_log_groups(self, _):
        return {"logGroups": []}

    def resourcegroupstaggingapi_get_resources(self, _):
        return {"ResourceTagMappingList": []}

    # ---- sam

    def build(self, given):
        for function in ("Coordinator", "Worker", "Scaler"):
            folder = pathlib.Path(given["build-dir"][0], f"{function}Function")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "bootstrap").write_bytes(b"GLIBC_2.17 GLIBC_2.34")

    def deploy(self, given):
        name = given["stack-name"][0]
        if "confirm-changeset" in given and sys.stdin.readline().strip().lower() != "y":
            # As SAM does: without an error.
            self.here["stacks"].setdefault(
                name, {"status": "REVIEW_IN_PROGRESS", "parameters": {}, "outputs": {}, "made": []}
            )
            return
        self.change(f"deploy {name}")
        parameters = overrides(given.get("parameter-overrides", []))
        stack = self.here["stacks"].get(name)
        is_new = stack is None or stack["status"] == "REVIEW_IN_PROGRESS"
        parameters = {**({} if is_new else stack["parameters"]), **parameters}
        functions = ("WorkerConcurrency", "CoordinatorConcurrency", "ScalerConcurrency")
        reserved = sum(int(parameters.get(each) or 0) for each in functions)
        others = sum(number for of, number in self.here["reserved"].items() if of != name)
        if reserved and self.here["concurrency"] - others - reserved < 100:
            raise Refused("decreases account's UnreservedConcurrentExecution below its minimum value of [100]")
        bucket, table = parameters.get("KeptBucket"), parameters.get("KeptTable")
        made = [] if is_new else stack["made"]
        if is_new and bucket and self.bucket(bucket)["policy"] is not None:
            raise Refused(f"The bucket policy already exists on bucket {bucket}")
        if not bucket:
            bucket = f"{name.lower()}-bucket-abc123"
            home = {"region": self.region, "policy": None, "objects": []}
            self.state["buckets"].setdefault(bucket, home)
            made.append(bucket)
        if not table:
            table = f"{name}-Table-ABC123"
            made.append(table)
            if table not in self.here["tables"]:
                self.here["tables"].append(table)
        self.bucket(bucket)["policy"] = f"policy of {name}"
        self.here["reserved"][name] = reserved
        outputs = {"BucketName": bucket, "TableName": table, "CoordinatorUrl": "https://url", "Namespace": "default"}
        if parameters.get("TrainerTrust"):
            outputs["TrainerRoleArn"] = "arn:trainer-role"
        tags = dict(each.split("=", 1) for each in given.get("tags", []))
        self.here["stacks"][name] = {
            "status": "CREATE_COMPLETE",
            "parameters": parameters,
            "outputs": {**outputs, "TrainerPolicyArn": "arn:policy", "WorkerRoleArn": "arn:role", "WorkerFunctionName": "worker:1"},
            "tags": tags,
            "made": made,
        }


def text(value):
    """As --output text writes it."""
    if value is None:
        return "None"
    if isinstance(value, list):
        if value and isinstance(value[0], list):
            return "\n".join(text(each) for each in value)
        return "\t".join(text(each) for each in value)
    return value if isinstance(value, str) else json.dumps(value)


def aws(cloud, words):
    if words[:2] == ["configure", "get"]:
        return
    service, operation, given = words[0], words[1], options(words[2:])
    call = getattr(cloud, f"{service}_{operation}".replace("-", "_"), None)
    if call is None:
        sys.exit(f"the stand-in knows no {service} {operation}: teach it")
    answer = call(given)
    if answer is not None:
        if "query" in given:
            answer = jmespath.search(given["query"][0], answer)
        print(text(answer) if given.get("output") == ["text"] else json.dumps(answer))


def main(program, words):
    with open(os.environ[STATE], "r+") as file:
        # Calls are made several at a time.
        fcntl.flock(file, fcntl.LOCK_EX)
        cloud = Cloud(json.load(file))
        try:
            if program == "aws":
                aws(cloud, words)
            else:
                getattr(cloud, words[0])(options(words[1:]))
        except Refused as error:
            print(f"An error occurred {error}", file=sys.stderr)
            sys.exit(254)
        finally:
            file.seek(0)
            file.truncate()
            json.dump(cloud.state, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
