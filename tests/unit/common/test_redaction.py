"""Which names and values are secrets, and text without them; the instrument's copy of the rules gives the same text."""

from __future__ import annotations

import pytest
from ddp_ladder.common.redaction import (
    is_secret_name,
    is_secret_value,
    redacted,
    redacted_arguments,
    secret_arguments,
)
from ddp_ladder.preflight.variables import known_names
from ddp_ladder_instrument import redaction as in_the_instrument

SECRET = (
    "HF_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID GITHUB_TOKEN DB_PASS DB_PASSWD PGPASSWORD PASSWORD "
    "COMET_API_KEY MLFLOW_TRACKING_PASSWORD OPENAI_APIKEY NCCL_PSK my_secret PRIVATE_KEY GIT_CREDENTIALS apiKey "
    "--auth-token --api-key SSHPASS DBPASS SECRETKEY ACCESSKEY WANDBKEY MYKEY TOKENS AUTH_TOKENS SECRETS DB_PASS1 "
    "OPENAI_KEY2 HF_TOKEN_2 MYSQL_PWD"
).split()
HARMLESS = (
    "KEYBOARD MONKEY PASSENGERS BYPASS PATH HOME SSH_AUTH_SOCK TOKENIZERS_PARALLELISM MAX_TOKENS TOKEN_LIMIT "
    "SSL_KEY_FILE HF_TOKEN_PATH PWD COMPASS_MODE NCCL_IB_PKEY OMP_NUM_THREADS CUDA_VISIBLE_DEVICES UCX_IB_PKEY "
    "--tokenizer _ - OLDPWD COMPASS HOTKEY NUM_PASSES N_KEYS TOKENS_PER_BATCH VLLM_MAX_TOKENS TOKEN_FILE2 KMP_AFFINITY "
    "HF_HOME SLURM_JOB_ID --lowpass"
).split()


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)
    assert in_the_instrument.is_secret_name(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_names_that_only_look_alike(name: str) -> None:
    assert not is_secret_name(name)
    assert not in_the_instrument.is_secret_name(name)


def test_of_the_variables_of_libraries_only_known_secrets_are_some() -> None:
    assert {name for name in known_names() if is_secret_name(name)} == {"NCCL_PSK"}


TEXTS = {
    "fatal: could not read from https://me:p4ss@git.example.org/repo.git": "https://***@git",
    "postgresql+psycopg2://user:a@b:c@db/x refused": "psycopg2://***@db/x refused",
    "git clone https://0123abc@git.example.org/repo.git failed": "https://***@git.example.org/repo.git failed",
    "Authorization: Bearer abc.def": "Authorization: ***",
    "{'Authorization': 'Basic dXNlcjpwYXNz', 'Accept': '*/*'}": "{'Authorization': '***', 'Accept': '*/*'}",
    "sent bearer 0123456789abcdef": "sent bearer ***",
    "GET https://host/x?id=7&api_key=abc&page=2": "GET https://host/x?id=7&api_key=***&page=2",
    "401 for hf_AbCdEfGhIjKlMnOpQrSt, sorry": "401 for ***, sorry",
    "ghp_0123456789abcdefghij glpat-0123456789abcdefghij sk-proj-0123456789abcdef": "*** *** ***",
    "AKIAIOSFODNN7EXAMPLE": "***",
    "export WANDB_API_KEY=0123abc; HOME=/home/me": "export WANDB_API_KEY=***; HOME=/home/me",
    "{'password': 'hunter2', \"user\": \"me\"}": "{'password': '***', \"user\": \"me\"}",
}
UNCHANGED = (
    "ssh://git@github.com/a/b",
    "http://host:8080/a@b",
    "http://host?mail=a@b",
    "KeyError: 'HF_TOKEN'",
    "JSONDecodeError: Unexpected token: line 1",
    "export HF_TOKEN=... before sbatch",
    "eos_token=</s>, key=layer1.weight",
    "RuntimeError: size mismatch for key: 'fc.weight'",
    "the bearer of this",
    "sk-learn hf_hub_download",
    "10.0.0.1:29500",
)


@pytest.mark.parametrize(("text", "wanted"), TEXTS.items())
def test_text_without_secrets(text: str, wanted: str) -> None:
    assert wanted in redacted(text)
    assert redacted(redacted(text)) == redacted(text)
    assert in_the_instrument.redacted(text, {}) == redacted(text)


@pytest.mark.parametrize("text", UNCHANGED)
def test_other_text_stays(text: str) -> None:
    assert redacted(text) == text
    assert in_the_instrument.redacted(text, {}) == text


def test_known_secrets_are_hidden_in_any_form() -> None:
    assert redacted("no user 'correct horse' at all", ["correct horse"]) == "no user '***' at all"
    environment = {"MY_SECRET": "correct horse", "HOME": "/home/me", "KEY": "abc"}
    assert in_the_instrument.redacted("no 'correct horse' in /home/me, abc", environment) == "no '***' in /home/me, abc"


def test_values_that_are_secrets_whatever_their_name() -> None:
    assert is_secret_value("http://me:pass@proxy:3128")
    assert is_secret_value("Authorization: Basic dXNlcjpwYXNz")
    assert is_secret_value("https://0123abc@git.example.org/repo")
    assert not is_secret_value("http://proxy:3128")
    assert not is_secret_value("16")


def test_arguments() -> None:
    given = (
        "train.py",
        "--api-key",
        "abcd",
        "--auth-token=xyz",
        "--max-tokens",
        "5",
        "--pad-token",
        "0",
        "--key",
        "-v",
    )
    assert secret_arguments(given) == [2, 3]
    shown = ("train.py", "--api-key", "***", "--auth-token=***", "--max-tokens", "5", "--pad-token", "0", "--key", "-v")
    assert redacted_arguments(given) == shown
    assert secret_arguments(["--train-tokens=1000000", "--auth-tokens=abc", "--password=123"]) == [1, 2]
    assert redacted_arguments(["https://a:b@c/d"]) == ("***",)
