"""Build the documentation site: generated reference pages and the mkdocs hook."""
