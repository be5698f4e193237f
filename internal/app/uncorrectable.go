package app

import (
	"cmp"
	"fmt"
	"sync"

	"github.com/nvmf-target/nvmf-target/nvme/target"
)

const (
	// uncorrectableDir is the directory, beside the state file.
	uncorrectableDir = "uncorrectable"
	// uncorrectableVersion is that of the format of the files.
	uncorrectableVersion = 1
)

// uncorrectable keeps which blocks hosts have marked uncorrectable, in a directory with a file for
// each namespace. It implements target.UncorrectableStore.
type uncorrectable struct {
	namespaceFiles

	mu   sync.Mutex
	kept map[reservedName]*target.Uncorrectable // as in the files
}

// uncorrectableData is the content of a file.
type uncorrectableData struct {
	Version int `json:"version"`
	reservedName
	// Identity is that of the storage.
	Identity string `json:"identity"`
	// Ranges are in bytes: where each begins, and where it ends.
	Ranges [][2]int64 `json:"ranges"`
}

// loadUncorrectable reads the files of a directory, which need not exist.
func loadUncorrectable(dir string) (*uncorrectable, error) {
	u := &uncorrectable{
		namespaceFiles: newNamespaceFiles(dir), kept: map[reservedName]*target.Uncorrectable{},
	}
	if err := u.each(u.load); err != nil {
		return nil, fmt.Errorf("uncorrectable blocks: %w", err)
	}
	return u, nil
}

// load reads a file. One that cannot be used is an error: blocks would be read that hosts have
// given up.
func (u *uncorrectable) load(file string) error {
	var d uncorrectableData
	err := decodeFile(file, &d)
	if err == nil && d.Version != uncorrectableVersion {
		err = fmt.Errorf("version %d", d.Version)
	}
	kept := &target.Uncorrectable{Identity: d.Identity}
	for _, r := range d.Ranges {
		kept.Ranges = append(kept.Ranges, target.ByteRange{Off: r[0], End: r[1]})
	}
	if err = cmp.Or(err, kept.Validate(), u.check(file, d.reservedName)); err != nil {
		return fmt.Errorf("%s cannot be used: %w. Restore it, or delete it: then blocks can be "+
			"read again that hosts have marked uncorrectable, with what is in them", file, err)
	}
	u.kept[d.reservedName] = kept
	return nil
}

// Uncorrectable implements target.UncorrectableStore.
func (u *uncorrectable) Uncorrectable(nqn string, nsid uint32) *target.Uncorrectable {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.kept[reservedName{nqn, nsid}]
}

// SetUncorrectable implements target.UncorrectableStore.
func (u *uncorrectable) SetUncorrectable(nqn string, nsid uint32, now *target.Uncorrectable) error {
	name := reservedName{nqn, nsid}
	if err := u.save(name, uncorrectableText(name, now)); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.kept[name] = now; now == nil {
		delete(u.kept, name)
	}
	return nil
}

// uncorrectableText is the content of a file, nil if there is nothing to keep.
func uncorrectableText(name reservedName, now *target.Uncorrectable) any {
	if now == nil {
		return nil
	}
	d := &uncorrectableData{
		Version: uncorrectableVersion, reservedName: name, Identity: now.Identity,
	}
	for _, r := range now.Ranges {
		d.Ranges = append(d.Ranges, [2]int64{r.Off, r.End})
	}
	return d
}
