// Package lint keeps the rules of the house that a compiler does not: who may import whom, where
// cgo and unsafe may be used, how long a file may be. The rules are the tables in its test; a new
// package edits them and says why in docs/adr.
package lint
