package app

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

const (
	// reservationsDir is the directory, beside the state file.
	reservationsDir = "reservations"
	// reservationsVersion is that of the format of the files.
	reservationsVersion = 1
)

// reservations keeps the reservations that persist through a restart, in a directory with a file
// for each namespace. It implements target.ReservationStore.
type reservations struct {
	namespaceFiles

	mu   sync.Mutex
	kept map[reservedName]*target.Reservations // as in the files
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
		namespaceFiles: newNamespaceFiles(dir), kept: map[reservedName]*target.Reservations{},
	}
	if err := r.each(r.load); err != nil {
		return nil, fmt.Errorf("reservations: %w", err)
	}
	return r, nil
}

// load reads a file. One that cannot be used is an error: hosts rely on what it said.
func (r *reservations) load(file string) error {
	var d reservationsData
	err := decodeFile(file, &d)
	if err == nil && d.Version != reservationsVersion {
		err = fmt.Errorf("version %d", d.Version)
	}
	var kept *target.Reservations
	if err == nil {
		kept, err = d.reservations()
	}
	if err = cmp.Or(err, r.check(file, d.reservedName)); err != nil {
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
	err := r.save(name, reservationsText(name, now))
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

// reservationsText is the content of a file, nil if there is nothing to keep.
func reservationsText(name reservedName, now *target.Reservations) any {
	if now == nil {
		return nil
	}
	d := &reservationsData{
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
	return d
}
