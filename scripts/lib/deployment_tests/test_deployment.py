"""scripts/deploy and scripts/teardown against an account that is imitated (cloud.py)."""

import json
import os
import pathlib
import random
import re
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
CLOUD = pathlib.Path(__file__).with_name("cloud.py")
BASH = os.environ.get("DEPLOYMENT_BASH", "bash")


class Account(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for program in ("aws", "sam"):
            path = self.folder / program
            path.write_text(f'#!/bin/sh\nexec {sys.executable} {CLOUD} {program} "$@"\n')
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.built = self.folder / "built"
        for function in ("Coordinator", "Worker", "Scaler"):
            (self.built / f"{function}Function").mkdir(parents=True)
            (self.built / f"{function}Function" / "bootstrap").write_bytes(b"\x00GLIBC_2.17\x00GLIBC_2.34\x00")
        self.save({"regions": {}, "buckets": {}, "changes": []})

    @property
    def state(self):
        return json.loads((self.folder / "state").read_text())

    def save(self, state):
        (self.folder / "state").write_text(json.dumps(state))

    def edit(self, change):
        state = self.state
        change(state)
        self.save(state)

    def run_script(self, script, *arguments, region="eu-west-1", answer=""):
        environment = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "AWS_REGION": region,
            "STAND_IN_STATE": str(self.folder / "state"),
        }
        return subprocess.run(
            [BASH, str(ROOT / "scripts" / script), *arguments],
            env=environment, input=answer, text=True, capture_output=True,
        )

    def deploy(self, *arguments, region="eu-west-1", answer=None):
        yes = ["--yes"] if answer is None else []
        built = ["--built", "--build-dir", str(self.built)]
        return self.run_script("deploy", *built, *yes, *arguments, region=region, answer=answer or "")

    def teardown(self, *arguments, region="eu-west-1"):
        return self.run_script("teardown", "--yes", *arguments, region=region)

    def assert_done(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)

    def assert_refused(self, done, words, code=2):
        """It was refused, with these words, before anything changed."""
        self.assertEqual((done.returncode, self.state["changes"]), (code, []), done.stderr)
        self.assertIn(words, done.stderr)

    def parameters(self, region="eu-west-1", stack="gristmill"):
        return self.state["regions"][region]["stacks"][stack]["parameters"]

    def has_concurrency(self, count, reserved=0, region="eu-west-1"):
        def change(state):
            here = {"stacks": {}, "tables": [], "concurrency": count, "reserved": {"other": reserved}}
            state["regions"].setdefault(region, here)["concurrency"] = count

        self.edit(change)

    def forget_changes(self):
        self.edit(lambda state: state.update(changes=[]))


class Concurrency(Account):
    def divided(self, count, reserved, *arguments):
        self.save({"regions": {}, "buckets": {}, "changes": []})
        self.has_concurrency(count, reserved)
        self.assert_done(self.deploy("--new-data", *arguments))
        found = self.parameters()
        names = ("MaxWorkers", "CoordinatorConcurrency", "ScalerConcurrency")
        return [int(found.get(name, 0)) for name in names]

    def test_half_of_the_concurrency_is_left_and_the_coordinator_has_a_sixth_of_the_workers(self):
        draws = random.Random(1)
        counts = [1000, 5000, 10000] + [draws.randrange(10, 12000) for _ in range(12)]
        for count in counts:
            reserved = draws.choice([0, 0, (count - 100) // 3]) if count > 400 else 0
            workers, coordinator, scaler = self.divided(count, reserved)
            free = count - reserved
            with self.subTest(count=count, reserved=reserved):
                left = free - workers - coordinator - scaler
                if free > 200:
                    self.assertGreaterEqual(left, max(free // 2, 100))
                    self.assertLessEqual(left, free // 2 + 2)
                    self.assertGreaterEqual(coordinator, max(20, workers / 6))
                self.assertGreaterEqual(workers, 1)

    def test_a_new_account_reserves_nothing_and_runs_some_workers(self):
        for count in (10, 50, 100):
            workers, coordinator, scaler = self.divided(count, 0)
            self.assertEqual((coordinator, scaler), (0, 0))
            self.assertTrue(1 <= workers <= count // 2, (count, workers))
        for count in (101, 150, 199):
            workers, coordinator, scaler = self.divided(count, 0)
            self.assertTrue(workers == 1 or count - workers - coordinator - scaler >= 100, (count, workers))

    def test_workers_that_are_reserved_are_what_a_job_has(self):
        self.assertEqual(self.divided(1000, 0, "--set", "WorkerConcurrency=200"), [200, 34, 5])

    def test_workers_that_are_set_are_obeyed_and_the_coordinator_follows_them(self):
        self.assertEqual(self.divided(1000, 0, "--set", "MaxWorkers=300"), [300, 50, 5])
        self.assertEqual(self.divided(1000, 0, "--set", "CoordinatorConcurrency=40")[1], 40)

    def test_more_than_can_be_reserved_is_refused_before_the_stack(self):
        self.has_concurrency(1000)
        self.assert_refused(self.deploy("--set", "WorkerConcurrency=800"), "AWS keeps 100")

    def test_a_raised_quota_is_seen_and_what_was_set_stays(self):
        self.has_concurrency(10)
        self.assert_done(self.deploy("--set", "ScalerConcurrency=0"))
        self.assertEqual(int(self.parameters()["MaxWorkers"]), 2)
        self.has_concurrency(1000)
        self.assert_done(self.deploy())
        first = self.parameters()
        self.assertEqual((first["MaxWorkers"], first["CoordinatorConcurrency"]), ("424", "71"))
        # Its own reservations are no concurrency of others.
        self.assert_done(self.deploy())
        self.assertEqual(self.parameters(), first)
        self.assert_done(self.deploy("--set", "MaxWorkers=50"))
        self.has_concurrency(5000)
        done = self.deploy()
        self.assert_done(done)
        self.assertEqual(self.parameters()["MaxWorkers"], "50")
        self.assertIn("MaxWorkers stays 50", done.stderr)

    def test_a_stack_of_an_earlier_version_is_divided_anew(self):
        self.assert_done(self.deploy())
        old = {"MaxWorkers": "975", "CoordinatorConcurrency": "20", "ScalerConcurrency": "5", "Architecture": "arm64"}

        def change(state):
            here = state["regions"]["eu-west-1"]
            here["stacks"]["gristmill"]["parameters"] = old
            here["reserved"]["gristmill"] = 25

        self.edit(change)
        self.assert_done(self.deploy())
        self.assertEqual(self.parameters()["MaxWorkers"], "424")

    def test_the_table_is_warmed_for_many_workers_and_never_cooled(self):
        self.has_concurrency(20000)
        self.assert_done(self.deploy())
        warmed = self.parameters()
        workers = int(warmed["MaxWorkers"])
        # 5,000 workers write 8,213 and read 11,957 units a second.
        self.assertGreaterEqual(int(warmed["WarmWrites"]), workers * 8213 / 5000)
        self.assertGreaterEqual(int(warmed["WarmReads"]), max(12000, workers * 11957 / 5000))
        self.assert_done(self.deploy("--set", "MaxWorkers=3000"))
        self.assertEqual(self.parameters()["WarmWrites"], warmed["WarmWrites"])
        self.assert_done(self.deploy("--stack", "small", "--set", "MaxWorkers=400"))
        self.assertNotIn("WarmWrites", self.parameters(stack="small"))


class Storage(Account):
    def with_bucket(self, name, region, policy="its policy", objects=()):
        of = {"region": region, "policy": policy, "objects": list(objects)}
        self.edit(lambda state: state["buckets"].update({name: of}))

    def test_another_regions_stack_is_neither_adopted_nor_touched(self):
        self.assert_done(self.deploy(region="us-east-1"))
        before = self.state["buckets"]["gristmill-bucket-abc123"]
        self.with_bucket("gristmill-bucket-mine", "eu-west-1")
        self.assert_done(self.deploy())
        self.assertEqual(self.parameters()["KeptBucket"], "gristmill-bucket-mine")
        self.assertEqual(self.state["buckets"]["gristmill-bucket-abc123"], before)
        self.forget_changes()
        for bucket in ("gristmill-bucket-abc123", "s3://gristmill-bucket-abc123"):
            self.assert_refused(self.deploy("--stack", "second", "--bucket", bucket), "is in us-east-1")
        self.assert_refused(self.teardown("--stack", "none", "--data", "--bucket", bucket), "is in us-east-1")

    def test_a_bucket_of_another_stack_is_refused(self):
        # Its bucket begins with `team-bucket-`, as one of the stack `team` does.
        self.assert_done(self.deploy("--stack", "team-bucket"))
        self.forget_changes()
        self.assert_refused(self.deploy("--stack", "team"), "belongs to stack team-bucket")
        table = "team-bucket-Table-ABC123"
        self.assert_refused(self.deploy("--stack", "new", "--table", table), "belongs to stack team-bucket")
        self.assert_refused(self.deploy("--stack", "new", "--set", f"KeptTable={table}"), "belongs to stack team-bucket")
        both = ("--table", table, "--bucket", "team-bucket-bucket-abc123")
        self.assert_refused(self.teardown("--stack", "new", "--data", *both), "belongs to stack team-bucket")
        # One of other templates has no such outputs.
        self.edit(lambda state: state["regions"]["eu-west-1"]["stacks"]["team-bucket"].update(outputs={}))
        self.assert_refused(self.deploy("--stack", "team"), "belongs to stack team-bucket")

    def test_resources_that_another_stack_uses_are_kept(self):
        self.assert_done(self.deploy())
        self.assert_done(self.teardown())
        self.assert_done(self.deploy("--stack", "heir", "--table", "gristmill-Table-ABC123", "--bucket", "gristmill-bucket-abc123"))
        self.assert_done(self.deploy("--new-data"))
        self.forget_changes()
        both = ("--table", "gristmill-Table-ABC123", "--bucket", "gristmill-bucket-abc123")
        self.assert_refused(self.teardown("--stack", "gone", "--data", *both), "belongs to stack")

    def test_a_policy_is_deleted_after_the_confirmation_and_put_back_if_there_is_no_stack(self):
        self.with_bucket("gristmill-bucket-old", "eu-west-1")
        self.assert_refused(self.deploy(answer="n\n"), "not confirmed", code=1)
        self.assert_refused(self.deploy(answer=""), "not confirmed", code=1)
        # The first question is answered, that of SAM is not.
        for answer in ("y\nn\n", "y\n"):
            done = self.deploy(answer=answer)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(self.state["buckets"]["gristmill-bucket-old"]["policy"], "its policy")
        self.assert_done(self.deploy(answer="y\ny\n"))
        self.assertEqual(self.state["buckets"]["gristmill-bucket-old"]["policy"], "policy of gristmill")

    def test_a_policy_is_put_back_if_sam_fails(self):
        self.with_bucket("gristmill-bucket-old", "eu-west-1")
        (self.folder / "sam").write_text("#!/bin/sh\nexit 1\n")
        self.assertEqual(self.deploy().returncode, 1)
        self.assertEqual(self.state["buckets"]["gristmill-bucket-old"]["policy"], "its policy")

    def test_a_bucket_without_a_policy_is_gone_on_with(self):
        self.with_bucket("gristmill-bucket-old", "eu-west-1", policy=None)
        self.assert_done(self.deploy())
        self.assertNotIn("delete-bucket-policy gristmill-bucket-old", self.state["changes"])

    def test_a_bucket_is_emptied_by_pages_with_its_versions(self):
        self.assert_done(self.deploy())
        objects = [{"Key": f"t/{n}", "VersionId": str(n % 3), "marker": n % 7 == 0} for n in range(9001)]
        self.with_bucket("gristmill-bucket-abc123", "eu-west-1", objects=objects)
        self.forget_changes()
        done = self.teardown("--data")
        self.assert_done(done)
        self.assertIn("nothing is left", done.stdout)
        pages = [int(change.split()[2]) for change in self.state["changes"] if change.startswith("delete-objects")]
        self.assertEqual((sum(pages), max(pages), len(pages)), (9001, 1000, 10))

    def test_an_object_that_cannot_be_deleted_is_named(self):
        self.assert_done(self.deploy())
        locked = [{"Key": "kept", "VersionId": "1", "locked": True}]
        self.with_bucket("gristmill-bucket-abc123", "eu-west-1", objects=locked)
        done = self.teardown("--data")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot delete s3://gristmill-bucket-abc123/kept: Access Denied", done.stderr)


class Arguments(Account):
    def test_buckets_are_understood_or_refused(self):
        self.has_concurrency(1000)
        refused = ["s3://b/prefix", "bbb/prefix", "bbb/", "s3://bbb/a/", "BBB", "b", "b b b", "s3://", "a,bbb",
                   "arn:aws-us-gov:s3:::bbb", "arn:aws:s3:::bbb/*", "arn:aws:s3:eu-west-1:123456789012:accesspoint/a"]
        for value in refused:
            with self.subTest(value):
                done = self.deploy("--dataset", value)
                self.assertEqual((done.returncode, self.state["changes"]), (2, []), done.stderr)
        for value in ["bbb", "s3://bbb", "s3://bbb/", "arn:aws:s3:::bbb"]:
            with self.subTest(value):
                self.assert_done(self.deploy("--dataset", value, "--dataset", "s3://ccc"))
                self.assertEqual(self.parameters()["DatasetBucketArns"], "arn:aws:s3:::bbb,arn:aws:s3:::ccc")

    def test_the_policy_for_another_account_is_printed(self):
        def change(state):
            state["buckets"]["mine"] = {"region": "eu-west-1", "policy": None, "objects": []}
            state["buckets"]["far"] = {"region": "us-east-1", "policy": None, "objects": []}
            state["buckets"]["theirs"] = {"region": "eu-west-1", "policy": None, "objects": [], "owner": "999999999999"}

        self.edit(change)
        done = self.deploy("--dataset", "mine", "--dataset", "far", "--dataset", "theirs", "--dataset", "none")
        self.assert_done(done)
        self.assertIn('"Resource": ["arn:aws:s3:::theirs", "arn:aws:s3:::theirs/*"]', done.stdout)
        self.assertIn('"arn:role"', done.stdout)
        self.assertEqual(done.stdout.count("s3:ListBucket"), 1)
        self.assertIn("bucket far is in us-east-1", done.stderr)
        self.assertIn("cannot see bucket none", done.stderr)

    def test_keys_and_settings_that_could_not_work_are_refused(self):
        key = "arn:aws:kms:eu-west-1:123456789012:key/1"
        for arguments in [("--dataset-key", key.replace("key/", "alias/")), ("--dataset-key", "alias/mine"),
                          ("--dataset-key", key.replace("aws", "aws-cn", 1)), ("--set", "MaxWorker=3"),
                          ("--set", "MaxWorkers"), ("--budget", "50"), ("--budget", "a@b:50"), ("--tag", "novalue"), ("--tag", "aws:x=y"), ("--stack",),
                          ("--unknown",), ("--unknown", "value"), ("--region", "nowhere"), ("--stack", "a_b")]:
            with self.subTest(arguments):
                done = self.deploy(*arguments)
                self.assertEqual((done.returncode, self.state["changes"]), (2, []), done.stderr)
        self.assert_done(self.deploy("--dataset-key", key))
        self.assertEqual(self.parameters()["KmsKeyArns"], key)

    def test_buckets_for_which_the_policy_of_trainers_has_no_room_are_refused(self):
        buckets = [part for n in range(45) for part in ("--dataset", f"{'b' * 30}{n}")]
        self.assert_refused(self.deploy(*buckets), "too few for 45 buckets")
        self.assert_done(self.deploy(*buckets[:60]))

    def trust(self, *arguments):
        """The one statement that deploy writes, and what it prints."""
        done = self.deploy(*arguments)
        self.assert_done(done)
        self.assertIn("arn:trainer-role", done.stdout)
        (statement,) = json.loads(self.parameters()["TrainerTrust"])["Statement"]
        return statement

    def test_trainers_that_are_named_may_assume_a_role(self):
        role = "arn:aws:iam::210987654321:role/of/trainers"
        for who in ("210987654321", role, role.replace("role/of", "user")):
            statement = self.trust("--trainer", who)
            self.assertEqual((statement["Principal"], statement["Condition"]), ({"AWS": who}, {}))
            # Sessions with tags, such as those of pods in EKS, need both.
            self.assertEqual(statement["Action"], ["sts:AssumeRole", "sts:TagSession"])
        subject = "system:serviceaccount:team:*"
        statement = self.trust("--trainer", "https://oidc.example.org/id/1/", "--trainer-subject", subject)
        self.assertEqual(statement["Action"], ["sts:AssumeRoleWithWebIdentity"])
        self.assertEqual(statement["Principal"]["Federated"], "arn:aws:iam::123456789012:oidc-provider/oidc.example.org/id/1")
        self.assertEqual(statement["Condition"]["StringLike"], {"oidc.example.org/id/1:sub": subject})
        self.assertEqual(statement["Condition"]["StringEquals"], {"oidc.example.org/id/1:aud": "sts.amazonaws.com"})
        anchor = "arn:aws:rolesanywhere:eu-west-1:123456789012:trust-anchor/1"
        statement = self.trust("--trainer", anchor, "--trainer-subject", "trainer")
        self.assertEqual(statement["Condition"]["ArnEquals"], {"aws:SourceArn": anchor})
        self.assertIn("sts:SetSourceIdentity", statement["Action"])
        # An update keeps it.
        self.assert_done(self.deploy())
        self.assertEqual(json.loads(self.parameters()["TrainerTrust"])["Statement"], [statement])
        self.assert_done(self.deploy("--trainer", "none"))
        self.assertEqual(self.parameters()["TrainerTrust"], "")

    def test_trust_in_nobody_in_particular_is_refused(self):
        anchor = "arn:aws:rolesanywhere:eu-west-1:123456789012:trust-anchor/1"
        for arguments in [("*",), ("12345",), ("https://oidc.example.org",), ("https://oidc.example.org", "*"), (anchor,),
                          ("https://oidc.example.org", 'a"b'), ("https://oidc example.org", "a"), ("210987654321", "a"),
                          ("arn:aws-cn:iam::210987654321:role/a",), ("arn:aws:iam::210987654321:root",), ("none", "a"),
                          ("arn:aws:iam::210987654321:role/a b",)]:
            with self.subTest(arguments):
                subject = ["--trainer-subject", arguments[1]] if len(arguments) == 2 else []
                self.assert_refused(self.deploy("--trainer", arguments[0], *subject), "deploy: ")
        self.assert_refused(self.deploy("--trainer-subject", "a"), "goes with --trainer")

    def test_regions_without_function_urls_are_refused(self):
        for region in ["eu-central-2", "eu-south-2", "ap-south-2", "ap-southeast-4", "ap-southeast-5", "il-central-1",
                       "me-central-1", "ca-west-1", "us-gov-west-1", "cn-north-1"]:
            with self.subTest(region):
                self.assert_refused(self.deploy(region=region), "no Lambda function URLs")
        for region in ["eu-west-1", "us-east-1", "ap-southeast-1", "eu-central-1", "eu-south-1", "me-south-1"]:
            with self.subTest(region):
                self.assert_done(self.deploy(region=region))

    def test_arns_have_the_partition_of_the_region(self):
        for region, partition in [("us-gov-west-1", "aws-us-gov"), ("cn-north-1", "aws-cn"), ("eu-west-1", "aws")]:
            with self.subTest(region):
                self.assert_done(self.deploy("--any-region", "--dataset", "bbb", region=region))
                self.assertEqual(self.parameters(region)["DatasetBucketArns"], f"arn:{partition}:s3:::bbb")

    def test_programs_that_lambda_cannot_start_are_refused(self):
        (self.built / "WorkerFunction" / "bootstrap").write_bytes(b"\x00GLIBC_2.4\x00GLIBC_2.39\x00GLIBC_2.17\x00")
        self.assert_refused(self.deploy(), "needs glibc 2.39", code=1)

    def test_a_budget_is_made_changed_and_deleted(self):
        for dollars in (50, 70):
            self.assert_done(self.deploy("--budget", f"{dollars}:me@example.org"))
            (made,) = self.state["budgets"].values()
            self.assertEqual(made["budget"]["BudgetLimit"]["Amount"], str(dollars))
            self.assertEqual(made["budget"]["CostFilters"]["TagKeyValue"], ["aws:cloudformation:stack-name$gristmill"])
            notices = [(each["Notification"]["NotificationType"], each["Subscribers"][0]["Address"]) for each in made["notices"]]
            self.assertEqual(notices, [("ACTUAL", "me@example.org"), ("FORECASTED", "me@example.org")])
        self.assert_done(self.teardown())
        self.assertEqual(self.state["budgets"], {})

    def test_tags_stay_and_are_added_to(self):
        tags = lambda: self.state["regions"]["eu-west-1"]["stacks"]["gristmill"]["tags"]  # noqa: E731
        self.assert_done(self.deploy("--tag", "team=a", "--tag", "cost=b"))
        self.assert_done(self.deploy("--tag", "team=c"))
        self.assertEqual(tags(), {"team": "c", "cost": "b"})


class OldBash(unittest.TestCase):
    """macOS has bash 3.2."""

    NEWER = {
        ";;& and ;&": r";;?&",
        "${x,,} and ${x^^}": r"\$\{\w+(\[[^]]*\])?[,^]",
        "${x@Q}": r"\$\{\w+(\[[^]]*\])?@\w\}",
        "${x[-1]}": r"\$\{\w+\[-",
        "mapfile": r"\b(mapfile|readarray|coproc)\b",
        "declare -A, -n and -g": r"\b(declare|local|typeset|readonly) -\w*[Ang]",
        "|& and &>>": r"\|&|&>>",
        "[[ -v": r"\[\[ (! )?-v\b",
        "wait -n": r"\bwait -n",
        "a group in a pattern, unquoted": r"=~ [^$\s]*\(",
        "printf %(..)T": r"printf\b.*%\(",
        "an array that may be empty": r"(?<!\+)\"\$\{(overrides|datasets|keys|parameters)\[[@*]\]\}\"",
    }

    def test_scripts_for_users_use_nothing_newer(self):
        scripts = ["deploy", "teardown", "package", "smoke-aws", "lib/deployment.sh", "lib/emulator.sh", "lib/tools.sh"]
        for script in (f"scripts/{name}" for name in scripts):
            for number, line in enumerate((ROOT / script).read_text().splitlines(), 1):
                code = re.sub(r"(^|\s)#.*", "", line)
                for name, pattern in self.NEWER.items():
                    with self.subTest(f"{script}:{number}"):
                        found = re.search(pattern, code)
                        guarded = "-eq 0 ]]" in code
                        self.assertFalse(found and not guarded, f"{name} is newer than bash 3.2: {line.strip()}")


if __name__ == "__main__":
    unittest.main()
