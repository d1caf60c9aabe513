"""What template.yaml must say for reasons that no linter knows. scripts/compare-templates holds infra/ against it."""

import json
import pathlib
import re
import unittest

import yaml

TEMPLATE = pathlib.Path(__file__).resolve().parents[3] / "template.yaml"


class Tags(yaml.SafeLoader):
    """Reads !Ref X as {"Ref": X}, and so on."""


def tagged(loader, tag, node):
    build = {yaml.ScalarNode: loader.construct_scalar, yaml.SequenceNode: loader.construct_sequence}
    if isinstance(node, yaml.MappingNode):
        return {tag: loader.construct_mapping(node, deep=True)}
    arguments = {"deep": True} if isinstance(node, yaml.SequenceNode) else {}
    return {tag: build[type(node)](node, **arguments)}


Tags.add_multi_constructor("!", tagged)


def within(node):
    """The node and all below it."""
    yield node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    for child in children:
        yield from within(child)


class Template(unittest.TestCase):
    def setUp(self):
        self.text = TEMPLATE.read_text()
        self.template = yaml.load(self.text, Tags)
        self.resources = self.template["Resources"]

    def of_type(self, kind):
        found = {name: each for name, each in self.resources.items() if each["Type"] == kind}
        self.assertTrue(found, kind)
        return found

    def alarms(self, metric):
        return [each for each in self.of_type("AWS::CloudWatch::Alarm").values() if each["Properties"]["MetricName"] == metric]

    def test_readers_of_datasets_may_list_them(self):
        # S3 says 403 instead of 404 for an absent object to those who may not.
        policies = 0
        for name, resource in self.resources.items():
            statements = [each for each in within(resource) if isinstance(each, dict) and "Sid" in each]
            on_datasets = [each for each in statements if {"Ref": "DatasetBucketArns"} in within(each["Resource"])]
            actions = {each["Action"] for each in on_datasets}
            if "s3:GetObject" in actions:
                policies += 1
                self.assertIn("s3:ListBucket", actions, name)
        self.assertEqual(policies, 2)

    def test_functions_log_nothing_for_each_call(self):
        for name, function in self.of_type("AWS::Serverless::Function").items():
            logging = function["Properties"]["LoggingConfig"]
            self.assertEqual((logging["LogFormat"], logging["SystemLogLevel"]), ("JSON", {"Ref": "SystemLogLevel"}), name)
        self.assertEqual(self.template["Parameters"]["SystemLogLevel"]["Default"], "WARN")

    def test_a_function_that_names_a_version_waits_for_its_event_settings(self):
        named = 0
        settings = self.of_type("AWS::Lambda::EventInvokeConfig")
        for name, function in self.of_type("AWS::Serverless::Function").items():
            for node in within(function["Properties"]["Environment"]):
                if isinstance(node, dict) and str(node.get("Ref", "")).endswith(".Version"):
                    named += 1
                    version = {"GetAtt": f"{node['Ref']}.Version"}
                    needed = [key for key, each in settings.items() if each["Properties"]["Qualifier"] == version]
                    self.assertEqual([function.get("DependsOn")], needed, name)
        self.assertEqual(named, 1)

    def test_buckets_keep_no_old_versions(self):
        for name, bucket in self.of_type("AWS::S3::Bucket").items():
            rules = bucket["Properties"]["LifecycleConfiguration"]["Rules"]
            rule = next(each for each in rules if "NoncurrentVersionExpiration" in each)
            self.assertTrue(rule["ExpiredObjectDeleteMarker"] and "Prefix" not in rule, name)

    def test_lost_reports_and_a_throttled_table_raise_alarms(self):
        for metric in ("DestinationDeliveryFailures", "ReadThrottleEvents", "WriteThrottleEvents"):
            self.assertEqual(len(self.alarms(metric)), 1, metric)

    def test_arns_name_no_partition(self):
        for number, line in enumerate(self.text.splitlines(), 1):
            code = re.sub(r"Description: .*|#.*", "", line)
            self.assertNotIn("arn:aws:", code, f"template.yaml:{number}")

    def test_the_role_that_another_account_names_is_an_output(self):
        self.assertEqual(self.template["Outputs"]["WorkerRoleArn"]["Value"], {"GetAtt": "WorkerRole.Arn"})

    def test_the_role_of_trainers_may_do_what_their_policy_says(self):
        role = self.resources["TrainerRole"]
        properties = role["Properties"]
        self.assertEqual((role["Condition"], self.template["Outputs"]["TrainerRoleArn"]["Condition"]), ("MakesTrainerRole",) * 2)
        self.assertEqual((properties["ManagedPolicyArns"], properties.get("Policies")), ([{"Ref": "TrainerPolicy"}], None))
        self.assertEqual(properties["MaxSessionDuration"], 12 * 3600)

    def test_the_policy_of_trainers_has_room_for_what_deploy_allows(self):
        arn = f"arn:aws:s3:::{'s' * 63}"

        def written(node):
            if node in ({"Ref": "DatasetBucketArns"}, {"Ref": "KmsKeyArns"}):
                return []
            if isinstance(node, dict) and "If" in node:
                return written(node["If"][1])
            if isinstance(node, dict) and "Split" in node:
                return []
            if isinstance(node, dict) and "Sub" in node:
                text = node["Sub"][0] if isinstance(node["Sub"], list) else node["Sub"]
                return re.sub(r"\$\{(\w|::)+\}", "a-name-of-16-let", text.replace("${Arn}", arn))
            if isinstance(node, dict):
                return {key: written(value) for key, value in node.items()}
            return [written(each) for each in node] if isinstance(node, list) else node

        policy = written(self.resources["TrainerPolicy"]["Properties"]["PolicyDocument"])
        # White space does not count.
        (base,) = re.findall(r"POLICY_BASE=(\d+)", (TEMPLATE.parent / "scripts/lib/deployment.sh").read_text())
        length = len(re.sub(r"\s", "", json.dumps(policy)))
        self.assertTrue(int(base) - 600 < length < int(base), length)

    def test_the_table_is_made_ready_for_what_the_parameters_say(self):
        (table,) = self.of_type("AWS::DynamoDB::Table").values()
        condition, warm, _ = table["Properties"]["WarmThroughput"]["If"]
        self.assertEqual(condition, "WarmsTable")
        self.assertEqual(warm, {"ReadUnitsPerSecond": {"Ref": "WarmReads"}, "WriteUnitsPerSecond": {"Ref": "WarmWrites"}})
        # A new table has this; less is refused.
        for name, least in (("WarmReads", 12000), ("WarmWrites", 4000)):
            parameter = self.template["Parameters"][name]
            self.assertEqual((parameter["Default"], parameter["MinValue"]), (least, least))


if __name__ == "__main__":
    unittest.main()
