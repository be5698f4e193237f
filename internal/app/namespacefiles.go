package app

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// namespaceSuffix ends the names of the files.
	namespaceSuffix = ".json"
	// mostKept is larger than any of them.
	mostKept = 1 << 20
	// writersAtOnce is how many files are written at a time, and in writerPause: each takes a
	// thread and wears the disk, and hosts decide how many they ask for. File systems make many
	// durable as fast as one.
	writersAtOnce = 64
	writerPause   = 100 * time.Millisecond
)

// namespaceFiles is a directory with a file for each namespace that something is kept of.
type namespaceFiles struct {
	dir     string
	step    fileStep
	writers chan struct{} // has writersAtOnce places
	failed  *atomic.Bool  // the last save
}

func newNamespaceFiles(dir string) namespaceFiles {
	return namespaceFiles{
		dir: dir, step: direct, writers: make(chan struct{}, writersAtOnce),
		failed: new(atomic.Bool),
	}
}

// reservedName names a namespace in a file.
type reservedName struct {
	NQN  string `json:"subsystem"`
	NSID uint32 `json:"nsid"`
}

// file is where something of a namespace is kept.
func (f *namespaceFiles) file(n reservedName) string {
	sum := sha256.Sum256([]byte(n.NQN))
	return filepath.Join(f.dir, fmt.Sprintf("%x-%d%s", sum[:8], n.NSID, namespaceSuffix))
}

// each calls fn for every file. Others were not complete when a crash came.
func (f *namespaceFiles) each(fn func(file string) error) error {
	list, err := os.ReadDir(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range list {
		if err == nil && strings.HasSuffix(e.Name(), namespaceSuffix) {
			err = fn(filepath.Join(f.dir, e.Name()))
		}
	}
	return err
}

// decodeFile reads a file.
func decodeFile(file string, d any) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.Size() > mostKept {
		return fmt.Errorf("%d bytes", info.Size())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	return dec.Decode(d)
}

// check says that a file is not the one of the namespace that it names.
func (f *namespaceFiles) check(file string, n reservedName) error {
	if f.file(n) != file {
		return fmt.Errorf("it is for namespace %d of %q", n.NSID, n.NQN)
	}
	return nil
}

// save replaces the file of a namespace, durably; nil: it has none.
func (f *namespaceFiles) save(n reservedName, d any) (err error) {
	f.writers <- struct{}{}
	defer time.AfterFunc(writerPause, func() { <-f.writers })
	defer func() { f.failed.Store(err != nil) }()
	if d == nil {
		return removeFile(f.file(n), f.step)
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(f.file(n), append(text, '\n'), f.step)
}

// inFiles is an error if namespaces have what says in files that the target cannot use, because
// their directory is another's. harm is what would come of it.
func (s *Server) inFiles(dir, what, harm string) error {
	f := newNamespaceFiles(dir)
	for _, n := range all(s.atStart) {
		file := f.file(reservedName{n.nqn, n.NSID})
		if _, err := os.Stat(file); err == nil {
			return fmt.Errorf("namespace %d of %s has %s in %s, "+
				"and their directory cannot be used, as logged before: %s. Stop the other target, "+
				"or name another directory in STATE_DIRECTORY", n.NSID, n.nqn, what, file, harm)
		}
	}
	return nil
}

// removeFile removes a file, which need not exist, so that it does not come back after a crash.
func removeFile(path string, step fileStep) error {
	err := step("remove", func() error { return os.Remove(path) })
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = step("sync directory", func() error { return syncDir(filepath.Dir(path)) })
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there is no directory either
	}
	return err
}
