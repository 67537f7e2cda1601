"""The batch per GPU is searched in the first scale's job, under a real limit of memory, and only once."""

from __future__ import annotations

from project_copy import HUNGRY, HUNGRY_LIMIT_MB, Checkout

RANGE = {"from": 8, "to": 512}


def configure(checkout: Checkout, *arguments: str, **wanted: object) -> None:
    workload = {"script": "loop.py", "args": ["{batch_per_gpu}", *arguments], "batch_per_gpu": {**RANGE, **wanted}}
    checkout.configure(workload=workload)
    checkout.without_torch(HUNGRY)


def test_a_climb_searches_the_batch_in_its_first_job_and_keeps_it(checkout: Checkout) -> None:
    configure(checkout)
    done = checkout.climb("stage1", "stage2")
    assert done.returncode == 0, done.stdout
    assert "stage1 1x1: batch 128 per GPU: out of memory: " in done.stdout
    assert done.stdout.count("searching the batch per GPU from 8 to 512") == 1
    chosen = checkout.record("default/weak/1x1/r1")["spec"]["batch_per_gpu"]
    assert 64 <= chosen < HUNGRY_LIMIT_MB
    assert f"Chosen: {chosen} per GPU, the smallest batch within 3 % of the best throughput" in done.stdout
    record = checkout.record("default/weak/1x2/r1")
    assert (record["status"], record["spec"]["batch_per_gpu"]) == ("ok", chosen)
    # The second start finds the choice, and plans the same runs.
    before, found = checkout.run_times(), (checkout.results / "fit/1x1.json").stat().st_mtime_ns
    done = checkout.climb("stage1", "stage2")
    assert done.returncode == 0, done.stdout
    assert "searching" not in done.stdout
    assert checkout.run_times() == before
    assert (checkout.results / "fit/1x1.json").stat().st_mtime_ns == found
    # Another workload searches again.
    configure(checkout, "--more")
    assert "searching the batch per GPU from 8 to 512" in checkout.climb("stage1").stdout


def test_where_no_batch_fits_the_gate_says_so(checkout: Checkout) -> None:
    configure(checkout, **{"from": 200})
    done = checkout.climb("stage1")
    assert done.returncode == 1
    failure = checkout.record("default/weak/1x1/r1")["failure"]
    assert failure["why"].startswith("no batch fits: 200, the smallest that was tried: out of memory")
    assert "lower `from` of workload.batch_per_gpu" in failure["next"]
    assert "no batch fits" in done.stdout


def test_another_failure_ends_the_search_with_its_cause(checkout: Checkout) -> None:
    configure(checkout)
    checkout.without_torch(HUNGRY + "\nif int(sys.argv[1]) == 32: raise ValueError('32 is not my number')\n")
    checkout.climb("stage1")
    failure = checkout.record("default/weak/1x1/r1")["failure"]
    assert failure["why"].startswith("the trial of batch 32 failed: the script raised an exception")
    assert "ValueError: 32 is not my number" in failure["why"]
    assert not (checkout.results / "fit/1x1.json").exists()


def test_snakemake_fit_searches_alone_and_a_climb_goes_on_from_it(checkout: Checkout) -> None:
    configure(checkout)
    done = checkout.snakemake("fit")
    assert done.returncode == 0, done.stdout
    assert "out of memory" in done.stdout
    assert not (checkout.results / "runs").exists()
    for start in (("fit",), ("--cores", "1", "stage1"), ("--cores", "1", "stage1")):
        done = checkout.snakemake(*start)
        assert done.returncode == 0, done.stdout
        assert "searching" not in done.stdout
    assert "nothing to measure" in done.stdout
    checkout.configure()
    done = checkout.snakemake("fit")
    assert done.returncode == 1
    assert "workload.batch_per_gpu: the batch is set, so there is nothing to search" in done.stdout
