// Package lint has the rules of this module that a compiler does not check: allowed imports, the
// use of cgo and unsafe, the length of files and lines, the keys of log lines, the words that
// docs/glossary.md has replaced, and the existence of everything named in documents (functions,
// metrics, messages, terms, files). The rules are the tables in its tests. A new package edits them
// and gives the reason in docs/adr.
package lint
