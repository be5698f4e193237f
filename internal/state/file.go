package state

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Step carries out one operation on a file. Tests make it fail, or end there.
type Step func(what string, fn func() error) error

// Direct is the Step that just carries out the operation.
func Direct(_ string, fn func() error) error { return fn() }

// WriteFile writes a file that only its owner can read. When it returns nil the content is durable,
// but not yet the name: see SyncDir. After an error there is no such file.
func WriteFile(path string, content []byte) error {
	err := create(content, Direct, func() (*os.File, error) {
		return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	})
	if err != nil {
		return errors.Join(err, unlessMissing(os.Remove(path)))
	}
	return nil
}

// create creates a file with durable content.
func create(content []byte, step Step, open func() (*os.File, error)) error {
	var f *os.File
	err := step("create", func() (err error) {
		f, err = open()
		return err
	})
	if err != nil {
		return err
	}
	err = step("write", func() error {
		_, err := f.Write(content)
		return err
	})
	if err == nil {
		err = step("sync", f.Sync)
	}
	return errors.Join(err, f.Close())
}

// unlessMissing returns err, or nil if err means that a file does not exist.
func unlessMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// makeDir makes a directory durably, with its parents if they are missing.
func makeDir(dir string) error {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: dir, Err: unix.ENOTDIR}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if err := makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(parent)
}

// readAll reads a regular file of at most limit bytes.
func readAll(root *os.Root, name string, limit int64) ([]byte, error) {
	info, err := root.Stat(name) // opening another kind of file may block
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if int64(len(text)) > limit {
		err = errors.New("it is too large")
	}
	return text, errors.Join(err, f.Close())
}
