package lang

// Key is a key of a mapping. As with a flag, the initial content of the variable is its default.
type Key struct {
	Name  string
	Value Value
	// Doc gives the meaning of the key and when to set it.
	Doc string
	// Required is the hint of the error for a missing key; "" means the key is optional.
	Required string
	// Default describes the default in the documentation if the variable does not.
	Default string
	// Restart: a change of the key, or of a key of the section, needs a restart; others are live.
	Restart bool
	// File: the key Name_file can name a file with the value instead.
	File bool
	// Secret: not everybody may read such a file, and Name_command can name a program instead.
	Secret bool

	// extended: the lists of several files are one.
	extended bool
	// name is the key that names an entry of an extended list; further entries have shared.
	name   string
	shared []string
	// include and directory are the variables of IncludeKey and DirectoryKey.
	include   *[]string
	directory *string
}

// NewKey makes an optional key.
func NewKey(name string, v Value, doc string) Key { return Key{Name: name, Value: v, Doc: doc} }

// Require returns the key with a hint for files without it.
func (k Key) Require(hint string) Key {
	k.Required = hint
	return k
}

// Without returns the key with a description of its default.
func (k Key) Without(text string) Key {
	k.Default = text
	return k
}

// NeedsRestart returns the key with Restart set.
func (k Key) NeedsRestart() Key {
	k.Restart = true
	return k
}

// OrFile returns the key with File set.
func (k Key) OrFile() Key {
	k.File = true
	return k
}

// OrSecretFile returns the key with File and Secret set.
func (k Key) OrSecretFile() Key {
	k.File, k.Secret = true, true
	return k
}

// Extended returns the key of a list to which each file appends its entries.
func (k Key) Extended() Key {
	k.extended = true
	return k
}

// Shared is Extended for a list where entries of several files are one if they have the same text
// under the key name. One describes it; the others have only name and the lists called shared.
func (k Key) Shared(name string, shared ...string) Key {
	k.extended, k.name, k.shared = true, name, shared
	return k
}

// early reports whether the key is read before all files are known. Such a key has no variable.
func (k *Key) early() bool { return k.include != nil || k.directory != nil }
