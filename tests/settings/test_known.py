"""A file's errors, and the list of algorithms, are told without torch, in the words of
the settings' own classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from colonnade.errors import ConfigError
from colonnade.settings.federation_file import Settings
from colonnade.settings.known import check_early

ROOT = Path(__file__).parents[2]
GOOD = '[parties.a]\ntable = "a.csv"\nlabel = "y"\n[parties.b]\ntable = "b.csv"\n'
SEVERAL = (
    '[algorithm]\nname = "multi_vfl"\n[[label_owners]]\nname = "n"\ntable ='
    ' "n.csv"\nlabel = "y"\n'
)
WRONG = {
    "a table that there is not": "[trian]\n" + GOOD,
    "no table": "train = 3\n" + GOOD,
    "an algorithm that there is not": '[algorithm]\nname = "vimadm"\n' + GOOD,
    "a setting that an algorithm has not": (
        '[algorithm]\nname = "knn"\nneighbours = 3\n' + GOOD
    ),
    "a number that is too small": '[algorithm]\nname = "vimadmm"\nrho = -1\n' + GOOD,
    "a word that is none of a few": (
        '[algorithm]\nname = "fdml"\noptimizer = "sdg"\n' + GOOD
    ),
    "a number of the default algorithm": "[algorithm]\nlocal_steps = 0\n" + GOOD,
    "a setting that training has not": "[train]\nepoch = 3\n" + GOOD,
    "text that is a number": "[federation]\ndevice = 3\n" + GOOD,
    "a switch that is text": '[train]\nearly_stop = "no"\n' + GOOD,
    "a key server's bits": "[selection]\nk = 0\n" + GOOD,
    "of a party": GOOD + 'scale = "max"\n',
    "a setting that a party has not": GOOD + "colums = []\n",
    "of a data owner": SEVERAL + '[[data_owners]]\nname = "lab"\ntabel = "lab.csv"\n',
    "of a label owner": SEVERAL + "row = 3\n",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_an_error_is_told_early_in_the_same_words(text: str, tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as late:
        Settings.from_toml(path)
    with pytest.raises(ConfigError) as early:
        check_early(path)
    assert str(early.value) == str(late.value)


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("**/federation*.toml")), ids=lambda path: path.parent.name
)
def test_no_good_file_is_refused(path: Path) -> None:
    check_early(path)


def test_neither_an_error_nor_the_list_imports_torch(tmp_path: Path) -> None:
    """It takes longer than anybody waits for a word."""
    (tmp_path / "bad.toml").write_text(WRONG["a number that is too small"])
    for words, code in ((["algorithms"], 0), (["run", str(tmp_path / "bad.toml")], 2)):
        script = (
            f"import sys; sys.argv[1:] = {words}\nfrom colonnade.cli import main\ntry:"
            f" main()\nexcept SystemExit as end: assert end.code == {code},"
            " end.code\nassert not {'torch', 'pandas', 'numpy'} & {*sys.modules}"
        )
        subprocess.run(
            [sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL
        )


def test_an_algorithm_that_is_not_in_the_table_yet_is_looked_for(
    tmp_path: Path,
) -> None:
    """One file and its name are enough to run it: here the table does not know knn."""
    (tmp_path / "new.toml").write_text('[algorithm]\nname = "knn"\n' + GOOD)
    script = (
        "import sys\nfrom pathlib import Path\nfrom colonnade.settings import"
        " known\ndel known.known()['algorithms']['knn']\nassert 'knn' not in"
        f" known.algorithms()\nknown.check_early(Path({str(tmp_path / 'new.toml')!r}))\nassert"
        " 'knn' in known.algorithms()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
