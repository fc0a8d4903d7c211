"""Break the product on purpose, one patch at a time, and see which test notices: ``python -m tests.mutants``.

Each ``tests/mutants/NAME.patch`` begins with what it breaks, and names by ``expects:`` the tests that must notice:
arguments of pytest, the cheapest first. They run in a copy of the checkout, with an environment of its own. What was
caught at this code before is skipped. The results are in ``docs/mutants.json``, and rendered in ``docs/mutants.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import results
from tests.chaos.passed import code

ROOT = results.ROOT
FOLDER = Path(__file__).parent
DATA, PAGE = ROOT / "docs" / "mutants.json", ROOT / "docs" / "mutants.md"
PRODUCT = ("include", "spark_jobs", "plugins")
PARTS = {"order": "Commit order and fences", "accounting": "Accounting", "elsewhere": "Elsewhere"}
_BROKEN = 5
"""How many tests may fail without a patch, before the others of its round are given up."""
_SEEN = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """A patch: its name, what it breaks, the part of the table, and the tests that are expected to notice."""

    name: str
    title: str
    part: str
    expects: tuple[str, ...]
    file: Path

    @classmethod
    def read(cls, file: Path) -> Mutant:
        """Read the head of a patch."""
        head = file.read_text().partition("\ndiff --git ")[0].splitlines()
        keys = [line.partition(": ")[::2] for line in head[1:] if line]
        return cls(
            file.stem, head[0], dict(keys)["part"], tuple(value for key, value in keys if key == "expects"), file
        )


MUTANTS = [Mutant.read(file) for file in sorted(FOLDER.glob("*.patch"))]


class Copy:
    """A copy of the checkout as it is, whose interpreter imports the copy's code."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self._git("clone", "-q", str(ROOT), str(self.root), at=ROOT)
        for line in self._git("status", "--porcelain", "-z", "-uall", "--no-renames", at=ROOT).split("\0"):
            name = line[3:]
            if name and (ROOT / name).exists():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
            elif name:
                (self.root / name).unlink(missing_ok=True)
        self._git("add", "-A")
        self._git(
            "-c", "user.name=m", "-c", "user.email=m@localhost", "commit", "-q", "--allow-empty", "-m", "as it is"
        )
        self._environment(folder / "venv")
        if (ROOT / "var" / "jvm").exists():
            (self.root / "var").mkdir(exist_ok=True)
            (self.root / "var" / "jvm").symlink_to(ROOT / "var" / "jvm")

    def _environment(self, venv: Path) -> None:
        """Make an environment with the packages of this one, and the copy's code in the place of the checkout's."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        self.python = venv / "bin" / "python"
        packages = sysconfig.get_paths()["purelib"]
        own = venv / Path(packages).relative_to(sys.prefix)
        own.joinpath("copy.pth").write_text("\n".join([*(str(self.root / part) for part in PRODUCT), packages]))
        for script in Path(sys.prefix, "bin").iterdir():
            target = venv / "bin" / script.name
            text = script.read_bytes() if script.is_file() else b""
            if text.startswith(b"#!") and b"python" in text.partition(b"\n")[0] and not target.exists():
                target.write_bytes(b"#!" + str(self.python).encode() + b"\n" + text.partition(b"\n")[2])
                target.chmod(0o755)
            elif text and not target.exists():
                target.symlink_to(script)
        self.env = {**os.environ, "PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(venv)}
        self.env.pop("PYTHONPATH", None)
        names = ("sluice", "sluice_spark", "sluice_airflow")
        asked = f"import {', '.join(names)}; print({', '.join(f'{name}.__file__' for name in names)})"
        found = subprocess.run(
            [str(self.python), "-c", asked], env=self.env, cwd="/", capture_output=True, text=True, check=True
        )
        assert all(Path(name).is_relative_to(self.root) for name in found.stdout.split()), found.stdout

    def apply(self, mutant: Mutant) -> None:
        """Break it."""
        self._git("apply", str(mutant.file))

    def restore(self) -> None:
        """Take a patch back."""
        self._git("checkout", "-q", ".")

    def test(self, *arguments: str) -> tuple[int, str, str]:
        """Run tests until one fails; return pytest's exit code, the test, and the output."""
        command = [str(self.python), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=self.root, env=self.env, capture_output=True, text=True, check=False)
        seen = _SEEN.search(done.stdout)
        return done.returncode, seen[1] if seen else "", done.stdout + done.stderr

    def _git(self, *arguments: str, at: Path | None = None) -> str:
        done = subprocess.run(["git", *arguments], cwd=at or self.root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def applies(mutant: Mutant) -> bool:
    """Return whether a patch fits the checkout's code; nothing is changed."""
    return not subprocess.run(["git", "apply", "--check", str(mutant.file)], cwd=ROOT, check=False).returncode


def judge(copy: Copy, mutant: Mutant, *, whole: bool) -> dict[str, str]:
    """Return which test caught a mutant; it counts only if it passes without the patch."""
    rounds = [("make test", shlex.split(expected)) for expected in mutant.expects]
    rounds += [("make test", ["-m", "not long", "-n", "2"])] if whole else []
    rounds += [("make chaos", ["-m", "long", *shlex.split(expected)]) for expected in mutant.expects]
    for by, arguments in rounds:
        broken: list[str] = []  # without the patch, too
        while len(broken) < _BROKEN:
            copy.apply(mutant)
            try:
                exit_code, test, output = copy.test(*arguments, *(f"--deselect={name}" for name in broken))
            finally:
                copy.restore()
            if exit_code in (0, 5) or not test:
                break
            if copy.test("-m", "", test)[0] == 0:
                return {"caught": by, "test": test}
            print(f"{mutant.name}: {test} fails without the patch, too", flush=True)
            broken.append(test)
        if exit_code not in (0, 1, 5) or (exit_code == 5 and by == "make test"):
            print(f"{mutant.name}: {shlex.join(arguments)} ended with {exit_code}:\n{output[-800:]}", flush=True)
    return {"caught": "no test", "test": ""}


def load() -> dict[str, dict[str, Any]]:
    """Return what is on record, by the names of the mutants."""
    return dict(json.loads(DATA.read_text())) if DATA.exists() else {}


def render(known: dict[str, dict[str, Any]]) -> str:
    """Return the page."""
    caught = sum(known.get(m.name, {}).get("caught") in ("make test", "make chaos") for m in MUTANTS)
    blocks = [
        "# Mutants",
        "`make mutants` breaks the product on purpose, one patch of `tests/mutants` at a time, and runs the tests that "
        "the patch expects to notice; it writes this page. A test counts if it fails with the patch and passes "
        "without. "
        f"{caught} of {len(MUTANTS)} are caught.",
    ]
    for part, title in PARTS.items():
        rows = [
            "| patch | what is broken | caught by | test | commit | date |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for mutant in (m for m in MUTANTS if m.part == part):
            found = known.get(mutant.name) or {"caught": "not run", "test": "", "commit": "", "date": ""}
            test = f"`{found['test'].replace('|', '/')}`" if found["test"] else ""
            patch = f"[{mutant.name}](../tests/mutants/{mutant.file.name})"
            cells = [patch, mutant.title.replace("|", "/"), found["caught"], test, found["commit"], found["date"][:10]]
            rows.append(f"| {' | '.join(cells)} |")
        blocks += [f"## {title}", "\n".join(rows)]
    return "\n\n".join(blocks) + "\n"


def write(known: dict[str, dict[str, Any]]) -> None:
    """Write data and page."""
    names = [mutant.name for mutant in MUTANTS if mutant.name in known]
    DATA.write_text("{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(known[name])}" for name in names) + "\n}\n")
    PAGE.write_text(render(known))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="TEXT", help="those whose name has this text")
    parser.add_argument("--whole", action="store_true", help="all of make test where the expected tests pass")
    parser.add_argument("--fresh", action="store_true", help="also those that were caught at this code before")
    parser.add_argument("--check", action="store_true", help="only whether all patches apply")
    args = parser.parse_args()
    chosen = [m for m in MUTANTS if any(text in m.name for text in args.only or [""])]
    if args.check:
        broken = [m.name for m in chosen if not applies(m)]
        print(f"{len(chosen) - len(broken)} of {len(chosen)} patches apply", *broken)
        return int(bool(broken))
    same = code(*PRODUCT, "tests")
    done = {name for name, found in load().items() if found["code"] == same and found["caught"] != "no test"}
    with tempfile.TemporaryDirectory(prefix="sluice-mutants-") as folder:
        copy = Copy(Path(folder))
        for mutant in chosen:
            if mutant.name in done and not args.fresh:
                continue
            found = judge(copy, mutant, whole=args.whole)
            print(f"{mutant.name}: {found['caught']} {found['test']}", flush=True)
            write({**load(), mutant.name: {**found, "commit": results.revision(), "date": results.now(), "code": same}})
    missed = [m.name for m in chosen if load().get(m.name, {}).get("caught") == "no test"]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} are caught", *missed)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
