"""`colonnade sign` and `colonnade verify`, as their users call them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.called import Caller
from tests.signing.signed import audited_run
from tests.transport.certified import kits


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return audited_run(tmp_path_factory.mktemp("original"))


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.fixture
def signed(run: Path, call: Caller) -> Path:
    assert call("sign", run, "--as", "lab", "--make-key").code == 0
    assert call("sign", run, "--as", "lab").code == 0
    return run


def test_a_run_is_signed_and_verified(run: Path, call: Caller) -> None:
    made = call("sign", run, "--as", "lab", "--make-key")
    assert made.code == 0, made.err
    assert "unbound" in made.out
    done = call("sign", run, "--as", "lab")
    assert done.code == 0, done.err
    assert "'lab' signed run" in done.out
    assert "gaussian" not in done.err
    assert "lab's columns: epsilon" in done.out
    assert "against the label owner" in done.out
    checked = call("verify", run)
    assert checked.code == 0, checked.err
    assert "are as they were signed" in checked.out
    assert "no certificate vouches" in checked.out


def test_what_changed_is_code_7(signed: Path, call: Caller) -> None:
    with (signed / "parties" / "lab" / "ledger.jsonl").open("a") as ledger:
        ledger.write("{}\n")
    called = call("verify", signed)
    assert called.code == 7
    assert "NotAsSigned" in called.err
    assert "parties/lab/ledger.jsonl grew by 3 bytes" in called.err
    assert "Traceback" not in called.err


def test_a_report_that_is_written_again_still_holds(signed: Path, call: Caller) -> None:
    assert call("report", signed).code == 0
    assert call("verify", signed).code == 0
    (signed / "report.html").write_text("<p>All is well.</p>")
    called = call("verify", signed)
    assert called.code == 7
    assert "report.html was changed" in called.err


def test_nothing_is_signed_without_an_audit(run: Path, call: Caller) -> None:
    call("sign", run, "--as", "lab", "--make-key")
    shutil.rmtree(run / "audit")
    words = call.fails(2, "sign", run, "--as", "lab")
    assert f"colonnade audit {run}" in words
    assert not (run / "signed").exists()


def test_who_has_no_key_is_told_how_to_make_one(run: Path, call: Caller) -> None:
    words = call.fails(2, "sign", run, "--as", "lab")
    assert f"colonnade sign {run} --as lab --make-key" in words


def test_a_site_signs_with_a_key_that_its_certificate_vouches_for(
    run: Path, call: Caller
) -> None:
    kit = kits() / "lab"
    made = call("sign", run, "--as", "lab", "--make-key", "--startup-kit", kit)
    assert made.code == 0, made.err
    assert "unbound" not in made.out
    assert call("sign", run, "--as", "lab").code == 0
    statement = run / "signed" / "lab" / "statement.json"
    for trust in (kit / "client.crt", kit / "rootCA.pem"):
        checked = call("verify", statement, "--trust", trust)
        assert checked.code == 0, checked.err
        assert "the one that --trust names" in checked.out
        assert "were not compared" in checked.out
    foreign = kits() / "clinic" / "client.crt"
    assert call("verify", statement, "--trust", foreign).code == 7
    assert call("verify", statement, "--run", run).code == 0


def test_a_kit_of_another_makes_no_key(run: Path, call: Caller) -> None:
    kit = kits() / "clinic"
    called = call("sign", run, "--as", "lab", "--make-key", "--startup-kit", kit)
    assert called.code == 1
    assert "is of 'clinic'" in called.err
    assert not (run.parent / "signing-keys").exists()


def test_verify_tells_machines_what_holds(signed: Path, call: Caller) -> None:
    (told,) = json.loads(call("verify", signed, "--json").out)
    assert told["statement"]["party"] == "lab"
    assert (told["bound"], told["trusted"], told["compared"]) == (False, False, True)


def test_each_of_several_statements_is_checked(signed: Path, call: Caller) -> None:
    """One that does not hold makes the command fail, and hides no other."""
    assert call("sign", signed, "--as", "clinic", "--make-key").code == 0
    assert call("sign", signed, "--as", "clinic").code == 0
    assert call("verify", signed).code == 0, "the page is the same for both"
    file = signed / "signed" / "lab" / "statement.json"
    file.write_text(file.read_text().replace("lab", "bal"))
    called = call("verify", signed)
    assert called.code == 7
    assert "'clinic' signed" in called.out
    assert "signed/lab/statement.json" in called.err


def test_options_that_would_do_nothing_are_refused(signed: Path, call: Caller) -> None:
    call.fails(2, "verify", signed, "--certificate", signed / "c.pem")
    call.fails(2, "sign", signed, "--as", "lab", "--startup-kit", signed)
    shutil.rmtree(signed / "signed")
    assert "Nothing is signed" in call.fails(2, "verify", signed)
    assert "cannot be read" in call.fails(2, "verify", signed / "none.json")


def test_a_key_is_not_made_twice(signed: Path, call: Caller) -> None:
    assert "never overwritten" in call.fails(
        2, "sign", signed, "--as", "lab", "--make-key"
    )


def test_no_word_of_a_statement_is_obeyed_by_a_terminal(
    signed: Path, call: Caller
) -> None:
    """It may come from anybody who has a key."""
    from colonnade.signing.keys import load_key
    from colonnade.signing.signature import signature_text
    from colonnade.signing.statement import canonical

    folder = signed / "signed" / "lab"
    said = json.loads((folder / "statement.json").read_text())
    said["audit"]["text"] = "\x1b[8Aclean [bold]"
    said["run"]["name"] = "\x1b[0J"
    text = canonical(said)
    (folder / "statement.json").write_text(text)
    key = load_key(signed.parent / "signing-keys" / "lab.pem", "lab")
    (folder / "statement.sig").write_text(signature_text(key, text.encode()))
    called = call("verify", folder / "statement.json")
    assert called.code == 0
    assert "clean [bold]" in called.out
    assert "\x1b" not in called.out
