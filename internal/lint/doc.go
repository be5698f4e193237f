// Package lint has the rules of this module that a compiler does not check: who may import whom,
// where cgo and unsafe may be used, how long files and lines may be, which keys log lines have,
// which words docs/glossary.md has replaced, and that what the documents name (functions, metrics,
// messages, terms, files) exists. The rules are the tables in its tests; a new package edits them
// and says why in docs/adr.
package lint
