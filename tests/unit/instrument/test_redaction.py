"""Which names are secrets, and text without them."""

from __future__ import annotations

import pytest
from ddp_ladder.settings.checks import known_names
from ddp_ladder_instrument.redaction import is_secret_name, redacted, redacted_words, without_values

SECRET = (
    "HF_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY GITHUB_TOKEN DB_PASS DB_PASSWD PGPASSWORD PASSWORD OPENAI_APIKEY "
    "NCCL_PSK my_secret PRIVATE_KEY GIT_CREDENTIALS apiKey --auth-token --api-key DB_PASS1 OPENAI_KEY2 MYSQL_PWD"
).split()
HARMLESS = (
    "KEYBOARD MONKEY BYPASS PATH TOKENIZERS_PARALLELISM MAX_TOKENS TOKEN_LIMIT SSL_KEY_FILE HF_TOKEN_PATH "
    "PWD OLDPWD NCCL_IB_PKEY OMP_NUM_THREADS --tokenizer _ - HOTKEY NUM_PASSES"
).split()


def test_names_of_secrets() -> None:
    assert [name for name in (*SECRET, *HARMLESS) if is_secret_name(name)] == SECRET
    assert {name for name in known_names() if is_secret_name(name)} == {"NCCL_PSK"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("could not read from https://me:p4ss@git.example.org/repo.git", "https://me:***@git.example.org"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("{'Authorization': 'Basic dXNlcjpwYXNz', 'Accept': '*/*'}", "{'Authorization': 'Basic ***', 'Accept': '*/*'}"),
        ("sent bearer 0123456789abcdef", "sent bearer ***"),
        ("GET https://host/x?id=7&api_key=abc&page=2", "https://host/x?id=7&api_key=***&page=2"),
        ("export WANDB_API_KEY=0123abc; HOME=/home/me", "export WANDB_API_KEY=***; HOME=/home/me"),
        ("{'password': 'hunter2', \"user\": \"me\"}", "{'password': '***', \"user\": \"me\"}"),
        ("error: unrecognized arguments: --api-key abcd1234", "unrecognized arguments: --api-key ***"),
        ("no such key: sk-proj-0123456789abcdef", "no such key: sk-***"),
        ("GET https://host/maps?key=AIzaSyD0123456789&page=2", "?key=***&page=2"),
        ("boto3 uses AKIAIOSFODNN7EXAMPLE now", "boto3 uses AKIA*** now"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "aws_secret_access_key = ***"),
        ("passwd: p@ss;w,rd\nnext line", "passwd: ***\nnext line"),
        ("machine api.wandb.ai\n  login me\n  password 0123abc\n", "login me\n  password ***\n"),
        ("GET https://b.s3.org/k?X-Amz-Signature=aeeed9bbccd4d02ee5c0109b&x=1", "?X-Amz-Signature=***&x=1"),
        (f"remote: {'glpat'}-x7Kq2mPz9LwRt4VbNc3J denied", "remote: glpat-*** denied"),
        ("slack says xoxb-123456789012-abcdefghij", "slack says xoxb-***"),
        (f"({'eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9'}.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3), 401", "(***), 401"),
        (f"{'npm'}_Zk3Xq9LwRt4VbNc3JmPz7KdYhGfS2aB1cD4e", "***"),  # one of the scanner's 200 services
        ("cat:\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----\nnext", "KEY-----***\nnext"),
        (f"-----BEGIN PRIVATE KEY-----\n[rank0]: {'MIIE' * 16}\n[rank0]: epoch 1", "KEY-----***\n[rank0]: epoch 1"),
        *(
            (text, text)
            for text in (
                "Unexpected key: layer1.0.conv1.weight", "best_key: val_accuracy_epoch_3", "pad_token: 50256",
                "argument --password: expected one argument", "Enter password: ",
                "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "tokens/s: 123456789012345",
                "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "-----BEGIN CERTIFICATE-----\nMIIE",
                "ssh://git@github.com/a/b", "http://host:8080/a@b", "http://host?mail=a@b", "KeyError: 'HF_TOKEN'",
                "JSONDecodeError: Unexpected token: line 1", "export HF_TOKEN=... before sbatch", "the bearer of this",
                "eos_token=</s>, key=layer1.weight", "size mismatch for key: 'fc.weight'", "10.0.0.1:29500",
                "argument --token: expected one argument", "the option --token is required", "sk-learn", "hf_hub",
            )
        ),
    ],
)  # fmt: skip
def test_text_without_secrets(text: str, wanted: str) -> None:
    assert wanted in redacted(text)
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--lr", "1", "--token=hunter2"], ["--lr", "1", "--token=***"]),
        (["--api-key", "V4LUE"], ["--api-key", "***"]),
        (["--env=API_KEY=V4LUE"], ["--env=API_KEY=***"]),
        (["--password", "correct horse", "x"], ["--password", "***", "x"]),
        (["--db", "postgres://bob:PW@host/db"], ["--db", "postgres://bob:***@host/db"]),
        (["--wandb-key", "0123456789abcdef0123"], ["--wandb-key", "***"]),
        (["tracker.api_key=V4LUE"], ["tracker.api_key=***"]),
    ],
)
def test_words_without_secrets(words: list[str], wanted: list[str]) -> None:
    assert redacted_words(words) == wanted
    assert redacted_words(wanted) == wanted


def test_options_of_texts_and_columns_are_no_secrets() -> None:
    words = (
        "--pad-token=[PAD] --eos_token </s> --image-key image0 --use_auth_token True --api-key ~/key --token".split()
    )
    words += ["--mask-token", "<mask>", "--max-tokens", "100", "--password", "--verbose", "s3://bucket/a@b"]
    assert redacted_words(words) == words


def test_known_secrets_are_hidden_in_any_form() -> None:
    environment = {"MY_SECRET": "correct horse", "HOME": "/home/me", "A_KEY": "abc"}
    assert without_values("no 'correct horse' in /home/me, abc", environment) == "no '***' in /home/me, abc"
