"""Sentences of the manual with a definite number, message or effect that tests elsewhere prove."""

from __future__ import annotations

import re

import pytest
from manual import ROOT, says

JOBS, TRAINING, PYTHON = "docs/jobs.md", "docs/training.md", "docs/python.md"
E2E, RANKS = "cli/tests/e2e.rs", "cli/tests/rank_clients.rs"
ONE_TRAINER = "shared/serve/src/server/one_trainer_tests.rs"
SERVER = "shared/serve/src/server"
#: Sentences whose test is elsewhere.
PROVEN = [
    (
        "README.md",
        "Every record arrives exactly once",
        f"{E2E}: killed_processes_lose_nothing_and_double_nothing",
    ),
    (
        "README.md",
        "in an order that depends only on the seed",
        f"{E2E}: any_mix_of_workers_delivers_every_record_once_with_one_hash",
    ),
    (
        "README.md",
        "training resumes at its checkpoint with the same bytes",
        f"{E2E}: killed_fetchers_and_services_go_on_where_they_were",
    ),
    (
        JOBS,
        "equal values mean equal batches",
        f"{E2E}: any_mix_of_workers_delivers_every_record_once_with_one_hash",
    ),
    (
        JOBS,
        "The batches are those of one rank.",
        "cli/tests/hosts.rs: hosts_train_on_the_batches_of_one_rank",
    ),
    (
        JOBS,
        "and a run that is at work leaves",
        f"{E2E}: a_named_run_that_is_killed_or_taken_over_goes_on_where_it_was",
    ),
    (
        JOBS,
        "A job that has failed tries again once a program joins it.",
        "python/tests/test_options.py: test_a_job_that_failed_goes_on_when_somebody_joins_it",
    ),
    (
        JOBS,
        "One that is done goes on for a trainer that loads an earlier checkpoint.",
        "python/tests/test_resume.py: test_a_done_job_goes_on_at_any_state",
    ),
    (
        JOBS,
        "with `--sharding off`, `--workers` and `--local-workers` are too",
        "python/tests/test_options.py: test_an_option_of_the_job_is_refused_with_both_values",
    ),
    (
        TRAINING,
        "reports, once the job ends, the same as `gristmill run`",
        "cli/tests/real_trainer.rs: a_fetcher_reports_of_a_real_trainer_what_a_run_reports",
    ),
    (
        TRAINING,
        "a unix socket that only you can read",
        "cli/tests/security.rs: sockets_accept_their_owner_alone",
    ),
    (
        TRAINING,
        "A trainer that sends `GMAW` before it reads a frame waits from then on.",
        f"{ONE_TRAINER}: only_time_in_which_the_trainer_waits_counts_if_it_says_so",
    ),
    (
        TRAINING,
        "batches after the checkpoint are sent again, byte for byte",
        f"{E2E}: a_checkpoint_older_than_what_is_deleted_is_served_the_same_batches",
    ),
    (
        TRAINING,
        "the fetcher closes the job without a trainer",
        f"{ONE_TRAINER}: a_job_whose_last_batch_was_acknowledged_is_closed_without_its_trainer",
    ),
    (
        TRAINING,
        "An acknowledgement of a batch that was not sent is refused",
        f"{ONE_TRAINER}: an_invalid_message_is_refused_and_the_next_trainer_is_served",
    ),
    (
        TRAINING,
        "if its position is beyond the job's plan",
        f"{SERVER}/tests.rs: a_beginning_beyond_the_job_is_refused_and_another_may_be_named",
    ),
    (
        TRAINING,
        "With `--socket -`, a batch counts as acknowledged once it is written.",
        f"{ONE_TRAINER}: a_reader_that_says_nothing_gets_every_frame_and_acknowledges_by_reading",
    ),
    (
        TRAINING,
        "At most two steps are kept for ranks that have yet to take them",
        f"{SERVER}/rank_states/tests.rs: a_rank_that_takes_nothing_holds_the_others_after_two_steps",
    ),
    (
        TRAINING,
        "any rank's copy resumes a run of any number of ranks",
        f"{RANKS}: three_ranks_resume_from_the_checkpoint_that_status_prints_of_two_whose_disks_are_lost",
    ),
    (
        TRAINING,
        "`--sharding off` gives an epoch the dataset once per worker",
        "cli/tests/visitation.rs: unsharded_every_worker_visits_everything",
    ),
    (
        PYTHON,
        "A loader takes either as well.",
        "python/tests/test_pipeline.py: test_a_pipeline_read_from_yaml_goes_on_in_python",
    ),
    (
        PYTHON,
        "and a `TypeError` where a filter",
        "python/tests/test_resume.py: test_len_is_not_known_behind_a_filter",
    ),
    (
        PYTHON,
        "an iteration has no batches and logs a warning",
        "python/tests/test_no_batches.py: test_epochs_that_are_over_are_said",
    ),
    (
        PYTHON,
        "keep the whole batch alive until the last of them is gone",
        "python/tests/test_zero_copy.py: test_arrays_outlive_loader_and_service",
    ),
    (
        PYTHON,
        "arrays hold its bits as u16",
        "python/tests/test_torch.py: test_bf16_that_numpy_does_not_know",
    ),
    (
        PYTHON,
        "and `gm.torch.Loader` with a `device` applies it there",
        "python/tests/test_torch.py: test_a_device_normalises_as_the_operator_does",
    ),
    (
        PYTHON,
        "so the last two checkpoints always work",
        "python/tests/test_resume.py: test_two_states_are_kept",
    ),
    (
        PYTHON,
        "says at once that this one is stored",
        "python/tests/test_resume.py: test_a_stored_state_is_acknowledged_at_once",
    ),
    (
        PYTHON,
        "After an epoch's last batch the state is the end of that epoch",
        "python/tests/test_resume.py: test_a_state_after_the_last_batch_has_nothing_left",
    ),
    (
        PYTHON,
        "a run of 8 ranks resumes with 6",
        "python/tests/test_torchrun.py: test_two_ranks_then_three",
    ),
    (
        PYTHON,
        "is an `OptionError`.",
        "python/tests/test_no_batches.py: test_ranks_that_outnumber_the_batches_are_reported",
    ),
    (
        PYTHON,
        "after `patience` raises `JobError`",
        "python/tests/test_no_batches.py: test_a_rank_without_its_peers_raises_after_its_patience",
    ),
    (
        PYTHON,
        "a handler that raises, as that of Ctrl-C does, ends a wait",
        "python/tests/test_calls.py: test_a_handler_that_raises_ends_the_wait",
    ),
    (
        PYTHON,
        "While another thread starts the loader, `close` ends that and `stats` answers.",
        "python/tests/test_calls.py: test_calls_while_the_loader_starts",
    ),
    (
        PYTHON,
        "After a fork, using it raises an error",
        "python/tests/test_process.py: test_a_loader_in_a_fork_is_refused_and_the_parent_goes_on",
    ),
    (
        PYTHON,
        "it cannot be read by the workers of a `DataLoader`",
        "python/tests/test_dataloader.py: test_workers_are_refused",
    ),
    (
        PYTHON,
        "a second one takes the job, and the first raises `JobError`",
        "python/tests/test_epochs.py: test_a_second_reader_takes_the_job",
    ),
    (
        PYTHON,
        "equal those of one that was not",
        "python/tests/test_train_resnet.py: test_a_killed_run_goes_on_with_equal_losses",
    ),
    (
        TRAINING,
        "One that goes back to an earlier checkpoint gets the batches after it again",
        "python/tests/test_resume.py: test_a_done_job_goes_on_at_any_state",
    ),
]


@pytest.mark.parametrize(("page", "sentence", "test"), PROVEN)
def test_a_sentence_has_its_test(page: str, sentence: str, test: str) -> None:
    says(page, sentence)
    path, name = test.split(": ")
    assert re.search(rf"(fn|def) {name}\(", (ROOT / path).read_text()), f"{path} has no {name}"
