"""A preprocessor of mdBook: links that leave docs/ become addresses of the repository.

Pages link to files of the repository by relative paths, which a forge resolves; a book has only docs/.
mdBook calls it with the book as JSON on standard input and takes the book from standard output."""

import json
import re
import sys

LINK = re.compile(r"(?<=\]\()\.\./([^)\s]*)(?=\))")


def rewrite(items, base):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            chapter["content"] = LINK.sub(lambda link: f"{base}/blob/main/{link.group(1)}", chapter["content"])
            rewrite(chapter["sub_items"], base)


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    context, book = json.load(sys.stdin)
    base = context["config"]["output"]["html"]["git-repository-url"]
    rewrite(book.get("items") or book["sections"], base)
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
