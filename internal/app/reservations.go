package app

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

const (
	// reservationsDir is the directory, beside the state file.
	reservationsDir = "reservations"
	// reservationsVersion is that of the format of the files, whose names end with the suffix.
	reservationsVersion = 1
	reservationsSuffix  = ".json"
	// mostReservations is larger than any file of ours.
	mostReservations = 1 << 20
	// writersAtOnce is how many files are written at a time, and in writerPause: each takes a
	// thread and wears the disk, and hosts decide how many they ask for. File systems make many
	// durable as fast as one.
	writersAtOnce = 64
	writerPause   = 100 * time.Millisecond
)

// reservations keeps the reservations that persist through a restart, in a directory with a file
// for each namespace. It implements target.ReservationStore.
type reservations struct {
	dir     string
	step    fileStep
	writers chan struct{} // has writersAtOnce places

	mu   sync.Mutex
	kept map[reservedName]*target.Reservations // as in the files
}

// reservedName names a namespace in a file.
type reservedName struct {
	NQN  string `json:"subsystem"`
	NSID uint32 `json:"nsid"`
}

// file is where the reservations of a namespace are.
func (r *reservations) file(n reservedName) string {
	sum := sha256.Sum256([]byte(n.NQN))
	return filepath.Join(r.dir, fmt.Sprintf("%x-%d%s", sum[:8], n.NSID, reservationsSuffix))
}

// reservationsData is the content of a file. Host identifiers are hexadecimal.
type reservationsData struct {
	Version int `json:"version"`
	reservedName
	Generation  uint32               `json:"generation"`
	Type        nvme.ReservationType `json:"type"`
	Holder      string               `json:"holder,omitempty"`
	HolderNQN   string               `json:"holder_host,omitempty"`
	Registrants []registrantData     `json:"registrants"`
}

type registrantData struct {
	HostID string `json:"hostid"`
	Key    uint64 `json:"key"`
	NQN    string `json:"host,omitempty"`
}

// loadReservations reads the files of a directory, which need not exist.
func loadReservations(dir string) (*reservations, error) {
	r := &reservations{
		dir: dir, step: direct, writers: make(chan struct{}, writersAtOnce),
		kept: map[reservedName]*target.Reservations{},
	}
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	for _, e := range list {
		if err == nil && strings.HasSuffix(e.Name(), reservationsSuffix) {
			err = r.load(filepath.Join(dir, e.Name()))
		} // others were not complete when a crash came
	}
	if err != nil {
		return nil, fmt.Errorf("reservations: %w", err)
	}
	return r, nil
}

// load reads a file. One that cannot be used is an error: hosts rely on what it said.
func (r *reservations) load(file string) error {
	info, err := os.Stat(file)
	var text []byte
	switch {
	case err != nil:
	case info.Size() > mostReservations:
		err = fmt.Errorf("%d bytes", info.Size())
	default:
		text, err = os.ReadFile(file)
	}
	var d reservationsData
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.DisallowUnknownFields()
		err = dec.Decode(&d)
	}
	if err == nil && d.Version != reservationsVersion {
		err = fmt.Errorf("version %d", d.Version)
	}
	var kept *target.Reservations
	if err == nil {
		kept, err = d.reservations()
	}
	if err == nil && r.file(d.reservedName) != file {
		err = fmt.Errorf("it is for namespace %d of %q", d.NSID, d.NQN)
	}
	if err != nil {
		return fmt.Errorf("%s cannot be used: %w. Restore it, or delete it: then no host is "+
			"registered with its namespace, and hosts that were locked out can write again", file,
			err)
	}
	r.kept[d.reservedName] = kept
	return nil
}

// reservations is what a file says, or what is wrong with it.
func (d *reservationsData) reservations() (*target.Reservations, error) {
	r := &target.Reservations{Generation: d.Generation, PTPL: true, Type: d.Type}
	r.Holder.NQN = d.HolderNQN
	none := strings.Repeat("0", 2*len(r.Holder.HostID))
	err := parseHostID(&r.Holder.HostID, cmp.Or(d.Holder, none))
	for _, g := range d.Registrants {
		to := target.Registrant{Key: g.Key}
		to.NQN = g.NQN
		err = errors.Join(err, parseHostID(&to.HostID, g.HostID))
		r.Registrants = append(r.Registrants, to)
	}
	return r, errors.Join(err, r.Validate())
}

func parseHostID(to *[16]byte, text string) error {
	b, err := hex.DecodeString(text)
	if err != nil || copy(to[:], b) != len(to) || len(b) != len(to) {
		return fmt.Errorf("host identifier %q", text)
	}
	return nil
}

// Load implements target.ReservationStore.
func (r *reservations) Load(nqn string, nsid uint32) *target.Reservations {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept[reservedName{nqn, nsid}]
}

// Save implements target.ReservationStore.
func (r *reservations) Save(nqn string, nsid uint32, now *target.Reservations) error {
	name := reservedName{nqn, nsid}
	r.writers <- struct{}{}
	err := r.write(name, now)
	time.AfterFunc(writerPause, func() { <-r.writers })
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept[name] = now; now == nil {
		delete(r.kept, name)
	}
	return nil
}

func (r *reservations) write(name reservedName, now *target.Reservations) error {
	if now == nil {
		return removeFile(r.file(name), r.step)
	}
	d := reservationsData{
		Version: reservationsVersion, reservedName: name, Generation: now.Generation,
		Type: now.Type, Registrants: []registrantData{},
	}
	if now.Holder != (target.HostIdentity{}) {
		d.Holder, d.HolderNQN = hex.EncodeToString(now.Holder.HostID[:]), now.Holder.NQN
	}
	for _, g := range now.Registrants {
		d.Registrants = append(d.Registrants, registrantData{
			hex.EncodeToString(g.HostID[:]), g.Key, g.NQN,
		})
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(r.file(name), append(text, '\n'), r.step)
}

// outOfReach is an error if namespaces have reservations that the target cannot use, because their
// directory is another's.
func (s *Server) outOfReach(r *reservations) error {
	for _, n := range all(s.atStart) {
		file := r.file(reservedName{n.nqn, n.NSID})
		if _, err := os.Stat(file); err == nil {
			return fmt.Errorf("namespace %d of %s has reservations in %s, and their directory "+
				"cannot be used, as logged before: hosts that are locked out could write. Stop "+
				"the other target, or name another directory in STATE_DIRECTORY", n.NSID, n.nqn,
				file)
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
