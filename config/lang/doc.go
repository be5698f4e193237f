// Package lang implements the language of configuration files: YAML, read strictly by a schema of
// keys.
//
// A Mapping has Keys, and each Key has a Value. The Value decodes the text of the key into a
// variable, checks it, and describes itself for the documentation and a JSON Schema. A Decoder
// reports every error with its place and a hint. Values come from a file, from the files that it
// includes, from files and programs that keys name, and from environment variables, which override
// all of them. Settings compare two configurations. The package knows no key of any program.
package lang
