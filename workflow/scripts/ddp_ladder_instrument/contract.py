"""What this package, the preflight's ranks and the workflow agree on. It imports nothing.

Variables of a training process; what the files of a rank contain.
"""

RUN_VARIABLE = "DDP_LADDER_RUN"  # absolute path of the run's run.json
LAUNCHED_VARIABLE = "DDP_LADDER_LAUNCHED_AT"  # unix time at which the launcher was started
METRICS_VARIABLE = "DDP_LADDER_METRICS"  # set for the script: the file for steps that it reports itself
HEARTBEATS_VARIABLE = "DDP_LADDER_HEARTBEATS"  # directory of the heartbeats of an agent's ranks, on their node
DIRECTORY_VARIABLE = "DDP_LADDER_DIRECTORY"  # of the files of an own run
WITNESS_VARIABLE = "DDP_LADDER_WITNESS"  # 1: the own run follows its batches, and is not timed
WITNESS = "rank{}.witness.json"

NO_SPEC = "0" * 64  # in place of a spec's hash, of a run that the ladder did not start
HOOK = "hook "  # begins the entry of not_measured on a hook that failed
FIRST_SAMPLES = "first samples"  # begins that on digests that raised

WITNESS_STEPS = 200  # of a run that follows its batches, at most
FOLLOWED = ("witnessed", "differs", "doubtful")  # statuses of a witness that has followed its batches
WITNESS_PASSES = 2  # over a loader that trains, to their ends: then it ends, too
WARMUP_STEPS = 20  # at least left out on a GPU: clocks rise, memory and kernel caches fill
LATE = "not over after"  # begins the error of a preflight's rank that its time limit ended
OVER_PAIRS = "all-reducing over pairs of nodes"  # what such a rank does then
BUFFERS, SYNC_BATCH_NORM = "buffers", "SyncBatchNorm"  # kinds of communication that no function of torch names

FIRST_STATE = "rank{}.first.json"  # of a link's rank, until its end record has it

HEARTBEAT = "rank{}.heartbeat"
BEAT_S = 1.0  # between two heartbeats of a rank
HEADER_BYTES = 1024  # of a heartbeat; stacks follow
STACK_AT_END = "rank{}.end"  # beside it: the stack of a rank that a signal ended
AT_ITS_END = "Main thread at its end"  # begins, in an agent's log, the stack of a rank that a signal ended
TOTALS = (
    "ended_at_s", "steps", "samples", "step_time_s", "data_wait_s", "collectives_s",
    "timed_steps", "forward_s", "backward_s", "comm_s", "overlap_s",
)  # fmt: skip
"""A rank's sums from its first step on, in its heartbeat; the first is when its last step ended (unix time). The last
five are of the steps that DDP timed. On a GPU all times are the host's, which is at most some steps ahead."""


LEAST_UNCLEAR = 0.01
"""Share of the drawn batches below which nothing is told of those that were left out, or may have been."""

LONG_REST_S = 0.03
"""From a step to the draw of the next one's first batch: what is shorter is never beside the training."""

COLUMNS = ("step", "samples", "padding_samples", "step_time_s", "data_wait_s")
DDP_COLUMNS = ("forward_s", "backward_s", "comm_s", "overlap_s")  # unknown for a step that DDP did not time
HEADER = (*COLUMNS, "ended_at_s", *DDP_COLUMNS, "collectives_s")
"""Columns of ranks/rank<k>.steps: little-endian doubles, column after column; nan is unknown.

A row is a step. Of more than MOST_ROWS steps, those after the first SINGLE_ROWS are in blocks of 2, 4, 8, ... steps, so
many that the rows fit: the number of steps alone decides the rows, so all ranks have the same ones. A block has the
sums of its steps, their last number and its end; of DDP's times it has none.
"""
SINGLE_ROWS, MOST_ROWS = 8_192, 20_480
