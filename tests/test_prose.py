"""Sentences that readers did not understand stay out of the package and its documentation, in any form."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".md", ".j2", ".toml", ".js", ".html", ".ipynb", ".yaml", ".yml", ".css", ".svg"}
NOT_READ = ("results/", "docs/examples/", "tests/test_prose.py")  # kept records, and this list

# Regular expressions, in lower case; one space stands for any white space and line break, with comment signs.
FORBIDDEN = [
    r"who(ever)? cannot say",
    r"keeps what it has",
    r"whom? nothing helps",
    r"who(ever)? (have|has|had) answered",
    r"nobody did",
    r"means nothing at all",
    r"gives such a client weight",
    r"never answered are",
    r"unlike everybody",
    r"who(ever)? hides something",
    r"within what nobody",
    r"who remembers them",
    r"allow it, and nothing is lost",
    r"nobody looked at",
    r"models are tried on cannot score",
    r"is like nobody else",
    r"tell much less than those",
    r"leave what clients have alone",
    r"stay so long for",
    r"learnt of the end",
    r"refuses what was mixed",
    r"mixed anew",
    r'"""the others\."""',
    r"asks again while",
    r"heard again",
    r"\b_?mourn",
    r"must not stop who",
    r"who answers at",
    r"ups and downs cancel",
    r"who knows nothing of the",
    r"nobody waits for",
    r"lies deep below",
    r"leave the runtime to chance",
    r"\bdepartures?\b",
    r"brings cuda along",
    r"rounds otherwise and ends",
    r"which others can do, too",
    r"page of 20 clients and 100 rounds has",
    r"take a client's model away",
    r"stops between rounds in time; again",
    r"in a file of its own it is there",
    r"says how the house is built",
    r"who have ever answered",
    r"under them, may choose others",
    r"travels is tried together",
    r"statistics of today",
    r"where nothing splits",
    r"what is not right is refused",
    r"not far above chance",
    r"trust is what",
    r"its like would have",
    r"who has a single class",
    r"made anew",
    r"never written down",
    r"leads? astray|led astray",
    r"not asked for anew",
    r"is told at the start",
    r"come as near with",
    r"last training began",
    r"gave a weight to another's model",
    r"taken for what",
    r"upright line",
    r"lines part the domains",
    r"no stand-alone run tells",
    r"what an exported model says",
    r"ends with ctrl-c",
    r"^nothing leaves",
    r"of all lanes\.",
    r'"""its file\."""',
    r'"""where it is\."""',
    r"v does travel\.",
    r"if they are matched by them\.",
    r"\banew\b",
    r"goes on so\b",
    r"\bone's own\b",
    r"from whom each client",
    r"did what distinguishes it",
]
HABITS = [  # ways of speaking that made those sentences hard to understand; tests may use them
    r"\bwho(so)?ever\b",
    r"\b(to|from|by|of|for|with|over|beside) whom\b",
    r"\b(nobody|everybody|somebody)\b",
    r", too[.,;:)]",
    r"\bgoes back to where\b",
    r"\ball that (is|was) not\b",
]


def plain(text: str) -> str:
    """The text as one line in lower case, without comment signs."""
    return re.sub(r"\s*\n\s*(#|//|\*)?\s*|\s+", " ", text).lower()


def hits(name: str, text: str) -> list[str]:
    """What a text holds that is forbidden, each with the words around it."""
    patterns = FORBIDDEN if name.startswith("tests/") else FORBIDDEN + HABITS
    found = re.finditer("|".join(f"(?:{each})" for each in patterns), text)
    return [f"{name}: ...{text[max(0, m.start() - 40) : m.end() + 40]}..." for m in found]


def texts() -> list[tuple[str, str]]:
    """The tracked files that people read, by name."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = []
    for name in listed.split("\0"):
        if Path(name).suffix in SUFFIXES and not name.startswith(NOT_READ):
            found.append((name, plain((ROOT / name).read_text(encoding="utf-8"))))
    return found


def test_no_listed_sentence_is_left() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    found = [hit for name, text in texts() for hit in hits(name, text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "sentence",
    [
        "# Average over those who have\n    # answered; nobody did: the own ones",
        "Weights of all who had answered.",
        "    // a client whom\n    // nothing helps goes on",
        "Whoever cannot say how good it was",
        "They are Mixed\nAnew.",
        "| v | v does travel. |",
        "The site was led\n  astray.",
        "Statistics help other methods, too.",
        "The tensors go to whom they concern.",
    ],
)
def test_the_search_finds_variants(sentence: str) -> None:
    assert hits("docs/page.md", plain(sentence))
