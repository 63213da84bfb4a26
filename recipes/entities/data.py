"""Make training data for entities of any label: from tagged sentences, and from questions whose answers are
spans of a text.

Which word asks gives the label: "In which city was she born?" labels the answer as a city, "Who wrote it?"
as a person. Labels that are to stay unseen, so that they can be measured, are left out.

    python data.py QUESTIONS.json.xz TAGGED.conll.xz ... -o train.jsonl --leave-out location product
"""

import argparse
import json
import lzma
import re
from collections import Counter, defaultdict
from pathlib import Path

WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
ASKED = {"who": "person", "whom": "person", "where": "place", "when": "date"}
COUNTED = re.compile(r"\bhow (many|much)\b")
NAMED = re.compile(r"\b(?:what|which) (?:kind of |type of |sort of |other |two |the name of the )?([a-z]+)\b")
NO_NOUNS = re.compile(
    r"is|are|was|were|did|do|does|can|could|may|might|should|would|will|has|have|had|be|the|an?|of|in|on|to|for|"
    r"with|by|from|as|at|that|this|these|those|it|they|he|she|his|her|their|happens|happened|caused|causes|"
    r"makes|made|other|else|kind|type|part|most|s|and|or|if|than|not|about|into"
)
MOST_WORDS, LONGEST, FEWEST = 60, 6, 3


def label_of(question):
    """The label that a question gives its answer; None if its words give none."""
    asked = question.lower()
    if COUNTED.search(asked):
        return "number"
    named = NAMED.search(asked)
    if named is not None and not NO_NOUNS.fullmatch(named.group(1)):
        return named.group(1)
    return next((label for word, label in ASKED.items() if re.search(rf"\b{word}\b", asked)), None)


def sentences_of(context):
    """The bounds of the sentences of a context, roughly."""
    start = 0
    for match in re.finditer(r"[.!?]\s+(?=[A-Z\"])", context):
        yield start, match.end()
        start = match.end()
    yield start, len(context)


def spans_of(files):
    """For each sentence its spans of characters with their labels."""
    spans = defaultdict(set)
    for file in files:
        for article in json.loads(lzma.decompress(file.read_bytes()))["data"]:
            for paragraph in article["paragraphs"]:
                bounds = list(sentences_of(paragraph["context"]))
                for asked in paragraph["qas"]:
                    label = label_of(asked["question"])
                    if label is None or not asked["answers"]:
                        continue
                    answer = asked["answers"][0]
                    first, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
                    for start, stop in bounds:
                        if start <= first and end <= stop:
                            text = paragraph["context"][start:stop].rstrip()
                            spans[text].add((first - start, end - start, label))
    return spans


NAMES = {"PER": "person", "ORG": "organization", "LOC": "location", "creative-work": "creative work"}


def tagged(file, limit):
    """Rows of words, and spans of the first word, the last word and the label, of a file with two columns."""
    words, spans, count = [], [], 0
    for line in [*lzma.decompress(file.read_bytes()).decode().split("\n"), ""]:
        columns = line.split("\t")
        if len(columns) < 2 or not columns[-1]:
            if words and count < limit:
                yield {"text": words, "label": spans}
                count += 1
            words, spans = [], []
            continue
        if not columns[0].strip():
            continue
        kind = columns[-1].partition("-")[2]
        if columns[-1].startswith("B-"):
            spans.append([len(words), len(words), NAMES.get(kind, kind)])
        elif kind:
            spans[-1][1] = len(words)
        words.append(columns[0].removeprefix("en:"))


def main():
    """Write a line of JSON for each sentence with at least one label that is asked for often enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--leave-out", nargs="*", default=[])
    parser.add_argument("--limit", type=int, default=4000, help="the most sentences of a tagged file")
    options = parser.parse_args()
    spans = spans_of([file for file in options.files if ".json" in file.name])
    often = Counter(label for of_text in spans.values() for _, _, label in of_text)
    written = 0
    with options.output.open("w", encoding="utf-8") as out:
        for text, of_text in spans.items():
            words = list(WORD.finditer(text))
            first = {match.start(): index for index, match in enumerate(words)}
            last = {match.end(): index for index, match in enumerate(words)}
            entities = sorted(
                (first[start], last[end], label)
                for start, end, label in of_text
                if start in first
                and end in last
                and last[end] - first[start] < LONGEST
                and often[label] >= FEWEST
                and label not in options.leave_out
            )
            if entities and len(words) <= MOST_WORDS:
                row = {"text": [match.group() for match in words], "label": entities}
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
                written += 1
        for file in options.files:
            for row in tagged(file, options.limit) if ".json" not in file.name else ():
                row["label"] = [span for span in row["label"] if span[2] not in options.leave_out]
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
                written += 1
    print(f"{written:,} texts, {sum(count >= FEWEST for count in often.values()):,} labels")
    print(", ".join(f"{label} {count}" for label, count in often.most_common(60)))


if __name__ == "__main__":
    main()
