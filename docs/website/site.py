"""All pages of the site, and the files beside them."""

import re

from docs.website import commands, keys, python_names, sources
from docs.website.documents import Site
from docs.website.layout import Pages

SOURCE = re.compile(r"\((?:\.\./)*source/([^)#]+)\.md")
OWN_FILES = {"assets/site.css": "docs/website/site.css", "assets/iframe-worker.js": "docs/website/iframe-worker.js"}


def made() -> tuple[Pages, dict[str, str]]:
    """The pages by their paths in the site, and the other files, each with its path in the repository."""
    things, models = python_names.public(), keys.models()
    tables = {model: keys.place_in_site(model) for model in models}
    documents = Site(commands.places() | keys.places_of_keys(models) | python_names.places(things))
    pages = documents.pages() | commands.pages() | keys.pages() | python_names.pages(things, tables)
    files = {file for text in pages.values() for file in SOURCE.findall(text)} | python_names.files(things)
    return pages | sources.pages(files), documents.images | OWN_FILES
