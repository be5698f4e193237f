package state

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// suffix is the suffix of the files of namespaces.
	suffix = ".json"
	// mostKept is the size limit of these files, in bytes.
	mostKept = 1 << 20
	// writersAtOnce is the number of files of a kind written at a time, and per writerPause. Each
	// write takes a thread and wears the disk, and hosts decide how many they cause. File systems
	// make many files durable as fast as one.
	writersAtOnce = 64
	writerPause   = 100 * time.Millisecond
)

// Name identifies a namespace.
type Name struct {
	NQN  string `json:"subsystem"`
	NSID uint32 `json:"nsid"`
}

// content is the content of a file: its namespace and the value V, or why it is invalid.
type content[V any] interface {
	named() Name
	value() (*V, error)
}

// kind is a kind of promise: a directory with a file for each namespace that has such a promise.
type kind[V any, D content[V]] struct {
	s *Store
	// dir is the name of the directory, and the kind of its files.
	dir string
	// without describes the effect on a promise of moving its file away.
	without string
	writers chan struct{} // has room for writersAtOnce
	failed  atomic.Bool   // the last change failed
	// changing is held by changes, and for writing while a deleted file is restored.
	changing sync.RWMutex

	mu   sync.Mutex
	kept map[Name]*V // as in the files
	data map[Name]D  // the same, as it is encoded
	// bad has the errors of files, by name. These files are not replaced.
	bad map[string]error
	// astray maps the name of a missing file to the name of a file that has its content.
	astray map[string]string
	// unsure has the namespaces with a failed last change: their files may contain it.
	unsure map[Name]bool
}

func newKind[V any, D content[V]](s *Store, dir, without string) *kind[V, D] {
	return &kind[V, D]{
		s: s, dir: dir, without: without, writers: make(chan struct{}, writersAtOnce),
		kept: map[Name]*V{}, data: map[Name]D{}, bad: map[string]error{},
		astray: map[string]string{}, unsure: map[Name]bool{},
	}
}

// ID returns a name for files and objects.
func (n Name) ID() string {
	sum := sha256.Sum256([]byte(n.NQN))
	return fmt.Sprintf("%x-%d", sum[:8], n.NSID)
}

func (k *kind[V, D]) file(n Name) string { return path.Join(k.dir, n.ID()+suffix) }

// load reads all files. A crash may have left incomplete files, with other suffixes, and names that
// are not durable. load first makes the names durable.
func (k *kind[V, D]) load() error {
	dir, err := k.s.root.OpenFile(k.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	list, err := dir.ReadDir(-1)
	if err = errors.Join(err, dir.Sync(), dir.Close()); err != nil {
		return err
	}
	for _, e := range list {
		if strings.HasSuffix(e.Name(), suffix) {
			k.read(path.Join(k.dir, e.Name()))
		}
	}
	return nil
}

// read reads one file and remembers its error.
func (k *kind[V, D]) read(file string) {
	text, err := readAll(k.s.root, file, mostKept)
	if errors.Is(err, fs.ErrNotExist) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.astray[file] == "" {
			delete(k.bad, file)
		}
		return
	}
	var d D
	if err == nil {
		err = decode(k.dir, text, &d)
	}
	var v *V
	if err == nil {
		v, err = d.value()
	}
	n := d.named()
	if err == nil && k.file(n) != file {
		err = fmt.Errorf("it is for namespace %d of %q", n.NSID, n.NQN)
		k.noteAstray(k.file(n), file)
	}
	if err != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.bad[file] = fmt.Errorf("%s cannot be used: %w. %s, or move it away: then %s",
			k.s.at(file), err, restore(err), k.without)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.bad, file)
	k.kept[n], k.data[n] = v, d
}

// noteAstray records that the file from has the content of the file to, unless to exists.
func (k *kind[V, D]) noteAstray(to, from string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := k.s.root.Lstat(to); errors.Is(err, fs.ErrNotExist) {
		k.astray[to] = from
		k.bad[to] = fmt.Errorf("%s is missing, and %s has its content. Rename that one, or "+
			"move it away: then %s", k.s.at(to), k.s.at(from), k.without)
	}
}

// check returns the error of the file of a namespace. It first reads a bad file again.
func (k *kind[V, D]) check(n Name) error {
	file := k.file(n)
	k.mu.Lock()
	bad, from := k.bad[file], k.astray[file]
	delete(k.astray, file)
	k.mu.Unlock()
	if bad == nil {
		return nil
	}
	if from != "" {
		k.read(from)
	}
	k.read(file)
	return k.wrong(file)
}

func (k *kind[V, D]) wrong(file string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bad[file]
}

// get returns the kept value of a namespace, or nil. sure: the file is known to have the same
// value.
func (k *kind[V, D]) get(n Name) (v *V, sure bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[n], !k.unsure[n] && k.bad[k.file(n)] == nil
}

// Load implements the stores of promises.
func (k *kind[V, D]) Load(nqn string, nsid uint32) *V {
	v, _ := k.get(Name{nqn, nsid})
	return v
}

// set replaces the file of a namespace durably by d, the content for v, or removes it if v is nil.
// After an error the file has its old or new content, and get returns the old value.
func (k *kind[V, D]) set(n Name, v *V, d D) (err error) {
	k.writers <- struct{}{}
	defer time.AfterFunc(writerPause, func() { <-k.writers })
	k.changing.RLock()
	defer k.changing.RUnlock()
	defer func() { k.failed.Store(err != nil) }()
	file := k.file(n)
	if err := k.wrong(file); err != nil {
		return err
	}
	k.mu.Lock()
	k.unsure[n] = true
	k.mu.Unlock()
	if v == nil {
		err = k.s.remove(file)
	} else {
		var text []byte
		if text, err = encode(k.dir, d); err == nil {
			err = k.s.replace(file, text)
		}
	}
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.unsure, n)
	if k.kept[n], k.data[n] = v, d; v == nil {
		delete(k.kept, n)
		delete(k.data, n)
	}
	return nil
}

// restore writes the files again that are missing although their promises are kept, up to the
// first error.
func (k *kind[V, D]) restore(restored func(file string, err error)) error {
	k.mu.Lock()
	names := slices.Collect(maps.Keys(k.kept))
	k.mu.Unlock()
	for _, n := range names {
		if file := k.file(n); k.s.isMissing(file) {
			if err := k.rewrite(n, file, restored); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *kind[V, D]) rewrite(n Name, file string, restored func(file string, err error)) error {
	k.changing.Lock()
	defer k.changing.Unlock()
	k.mu.Lock()
	d, kept := k.data[n]
	kept = kept && k.bad[file] == nil
	k.mu.Unlock()
	if !kept {
		return nil
	}
	return k.s.rewrite(file, k.dir, d, restored)
}

// each calls kept for every namespace with a kept value, and bad for every unusable file.
func (k *kind[V, D]) each(kept func(n Name, file string), bad func(error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for n := range k.kept {
		kept(n, k.s.at(k.file(n)))
	}
	for _, err := range k.bad {
		bad(err)
	}
}
