"""scripts/smoke-aws against an account that is imitated, with a gristmill that delivers batches or not."""

import json
import pathlib
import signal
import subprocess
import sys
import time

from test_deployment import BASH, ROOT, Account

sys.path.insert(0, str(ROOT / "scripts/lib"))
import smoke  # noqa: E402

GRISTMILL = """#!/bin/sh
case "$1 $*" in
    demo*) mkdir -p "$XDG_CACHE_HOME/gristmill/datasets/images" ;;
    *"--job killed"*) %s ;;
    status*) echo "no job nobody" ;;
    doctor*) echo "ok credentials ASIAKEY: arn:aws:sts::123456789012:assumed-role/trainer" ;;
    run*) echo '{"batches_blake3": "aa", "lost": 0, "duplicates": 0, "kills": 0, "splits": 2, "requests": {}, "epochs": []}' ;;
esac
"""
EQUAL = """echo '{"batches_blake3": "aa", "lost": 0, "duplicates": 0, "kills": 3, "splits": 2, "requests": {}, "epochs": []}'"""


class Smoke(Account):
    def setUp(self):
        super().setUp()
        # So that nothing waits for late logs.
        self.variables = {"AWS_ENDPOINT_URL": "http://emulator"}

    def start(self, *arguments, killed=EQUAL, yes=True):
        (self.folder / "gristmill").write_text(GRISTMILL % killed)
        (self.folder / "gristmill").chmod(0o755)
        words = ["--bin-dir", str(self.folder), "--build-dir", str(self.built), "--out", str(self.folder / "out.json")]
        environment = {
            "PATH": f"{self.folder}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "AWS_REGION": "eu-west-1",
            "STAND_IN_STATE": str(self.folder / "state"),
            **self.variables,
        }
        command = [BASH, str(ROOT / "scripts/smoke-aws"), *words, *(["--yes"] if yes else []), *arguments]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env=environment, text=True, **streams)

    def outcome(self, process):
        said = process.communicate()[0]
        out = self.folder / "out.json"
        return process.returncode, said, json.loads(out.read_text()) if out.exists() else None

    def assert_nothing_is_left(self):
        state = self.state
        self.assertEqual((state["regions"]["eu-west-1"]["stacks"], state["buckets"]), ({}, {}))

    def test_equal_batches_are_a_success_and_all_is_deleted(self):
        code, said, found = self.outcome(self.start())
        self.assertEqual((code, found["outcome"], found["left"]), (0, "ok", "nothing"), said)
        self.assert_nothing_is_left()
        self.assertIn("deploy gristmill-smoke", self.state["changes"])
        self.assertIn("invoke worker:1 Event", self.state["changes"])
        self.assertEqual(found["runs"]["killed"]["kills"], 3)
        self.assertEqual(found["measured"]["functions"]["worker"]["init_ms"]["p50"], 60.5)
        self.assertAlmostEqual(found["measured"]["cost"]["bill_usd"]["functions"], 3 * 0.5 * 0.08 * 1.5e-5, delta=1e-6)
        # Nobody has to read it before it is sent.
        text = json.dumps(found)
        self.assertFalse("123456789012" in text or "ASIAKEY" in text or "secret" in text, text)

    def test_other_batches_are_a_failure_and_all_is_deleted(self):
        for killed, words in [(EQUAL.replace("aa", "bb"), "the batches differ"), ("exit 1", "ended with 1")]:
            code, said, found = self.outcome(self.start(killed=killed))
            self.assertEqual((code, found["outcome"], found["left"]), (1, "failed", "nothing"), said)
            self.assertIn(words, said)
            self.assert_nothing_is_left()

    def test_an_interrupted_run_leaves_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            process = self.start(killed="sleep 100")
            while "--job killed" not in subprocess.run(["ps", "ax"], capture_output=True, text=True).stdout:
                time.sleep(0.1)
            process.send_signal(number)
            code, said, found = self.outcome(process)
            self.assertEqual((code, found["last_step"], found["left"]), (1, "killed", "nothing"), said)
            self.assert_nothing_is_left()

    def test_nothing_is_made_without_a_yes_or_beside_a_stack_of_that_name(self):
        code, said, _ = self.outcome(self.start(yes=False))
        self.assertEqual((code, self.state["changes"]), (1, []))
        self.assertIn("at most 1 dollar", said)
        self.assert_done(self.deploy("--stack", "gristmill-smoke"))
        self.forget_changes()
        code, said, _ = self.outcome(self.start())
        self.assertEqual((code, self.state["changes"]), (1, []))
        self.assertIn("scripts/teardown --region eu-west-1 --stack gristmill-smoke --data", said)

    def test_kept_stacks_are_named(self):
        code, said, found = self.outcome(self.start("--keep"))
        self.assertEqual((code, found["left"]), (0, "kept"), said)
        self.assertIn("gristmill-smoke", self.state["regions"]["eu-west-1"]["stacks"])
        self.assertIn("scripts/teardown --region eu-west-1 --stack gristmill-smoke --data", said)

    def test_reports_of_lambda_are_read_as_json_and_as_text(self):
        metrics = {"durationMs": 1.5, "billedDurationMs": 2, "memorySizeMB": 512, "maxMemoryUsedMB": 40, "initDurationMs": 9.25}
        text = "REPORT RequestId: 8587e382\tDuration: 1.5 ms\tBilled Duration: 2 ms\tMemory Size: 512 MB\tMax Memory Used: 40 MB"
        expected = {"duration": 1.5, "billed": 2, "memory": 512, "used": 40, "init": 9.25}
        as_json = json.dumps({"type": "platform.report", "record": {"metrics": metrics}}, separators=(",", ":"))
        self.assertEqual(smoke.platform_report(as_json), expected)
        self.assertEqual(smoke.platform_report(f"{text}\tInit Duration: 9.25 ms\t"), expected)
        self.assertEqual(smoke.platform_report(text), {**expected, "init": None})
        self.assertIsNone(smoke.platform_report("START RequestId: 8587e382"))

    def test_prices_are_those_of_the_model(self):
        prices = pathlib.Path(ROOT / "shared/policy/src/cost/prices.rs").read_text().replace("_", "")
        for price, of in [(smoke.GB_SECOND["arm64"], 1), (smoke.GB_SECOND["x86_64"], 1), (smoke.PUT, 1000), (smoke.GET, 1000)]:
            self.assertIn(f"{price * of:.10f}".rstrip("0"), prices)
