package state

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// This file has the promises of namespaces.

// protectedData is the content of the file of a write-protected namespace.
type protectedData struct {
	Name
}

func (n Name) named() Name { return n }

func (d protectedData) value() (*protectedData, error) { return &d, nil }

// Protection implements controllers.ProtectionStore.
type Protection struct {
	*kind[protectedData, protectedData]
}

func (p *Protection) Protected(nqn string, nsid uint32) bool {
	return p.Load(nqn, nsid) != nil
}

func (p *Protection) SetProtected(nqn string, nsid uint32, protected bool) error {
	n := Name{nqn, nsid}
	if v, sure := p.get(n); sure && (v != nil) == protected {
		return nil
	}
	d := protectedData{n}
	if !protected {
		return p.set(n, nil, d)
	}
	return p.set(n, &d, d)
}

// reservationsData is the content of a file of reservations. Host identifiers are hexadecimal.
type reservationsData struct {
	Name
	Generation  uint32               `json:"generation"`
	Volatile    bool                 `json:"volatile,omitempty"` // not PTPL
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

func (d reservationsData) value() (*reservation.State, error) {
	r := &reservation.State{Generation: d.Generation, PTPL: !d.Volatile, Type: d.Type}
	r.Holder.NQN = d.HolderNQN
	none := strings.Repeat("0", 2*len(r.Holder.HostID))
	err := parseHostID(&r.Holder.HostID, cmp.Or(d.Holder, none))
	for _, g := range d.Registrants {
		to := reservation.Registrant{Key: g.Key}
		to.NQN = g.NQN
		err = errors.Join(err, parseHostID(&to.HostID, g.HostID))
		r.Registrants = append(r.Registrants, to)
	}
	return r, errors.Join(err, r.Validate())
}

func parseHostID(to *[16]byte, text string) error {
	b, err := hex.DecodeString(text)
	if err != nil || copy(to[:], b) != len(to) || len(b) != len(to) {
		return fmt.Errorf("its host identifier %q is not 16 bytes in hexadecimal", text)
	}
	return nil
}

func reservationsOf(n Name, r *reservation.State) reservationsData {
	d := reservationsData{Name: n, Registrants: []registrantData{}}
	if r == nil {
		return d
	}
	d.Generation, d.Volatile, d.Type = r.Generation, !r.PTPL, r.Type
	if r.Holder != (reservation.Host{}) {
		d.Holder, d.HolderNQN = hex.EncodeToString(r.Holder.HostID[:]), r.Holder.NQN
	}
	for _, g := range r.Registrants {
		d.Registrants = append(d.Registrants, registrantData{
			hex.EncodeToString(g.HostID[:]), g.Key, g.NQN,
		})
	}
	return d
}

// reservationsKind is the directory, and the kind of their files.
const reservationsKind = "reservations"

// Shared has the promises of a namespace that several gateways serve in turn.
type Shared struct {
	Reservations  *reservation.State // they need not persist
	Protected     bool
	Uncorrectable *marks.Kept // nil: none
}

// sharedData is the content of the object of Shared. With reservations only it is that of a file.
// Programs that know reservations only refuse more.
type sharedData struct {
	reservationsData
	Protected     bool       `json:"write_protected,omitempty"`
	Uncorrectable *marksData `json:"uncorrectable,omitempty"`
}

// placeData is the pool with the object of Shared of a namespace, and the content of a file that
// says so.
type placeData struct {
	Name
	Pool string `json:"pool"`
	// Stored: the object has been there.
	Stored bool `json:"stored,omitempty"`
}

func (d placeData) value() (*placeData, error) {
	if d.Pool == "" {
		return nil, errors.New("it names no pool")
	}
	return &d, nil
}

const withoutPlace = "promises to hosts of a group of gateways are not in force outside " +
	"of the group: reservations, write protection and uncorrectable blocks"

// places has where the promises of namespaces are that were in a group of gateways, also when they
// are not any more.
type places struct {
	*kind[placeData, placeData]
	noting sync.Mutex // held by note
}

// check returns an error if the promises of a namespace are in another place.
func (p *places) check(n Name, pool string) error {
	return p.refuseIf(n, func(is *placeData) error {
		if is.Pool == pool {
			return nil
		}
		return fmt.Errorf("its reservations, write protection and uncorrectable blocks are in "+
			"object %s of pool %s (%s says so), since it was in a group of gateways. It is not in "+
			"a group with that pool now. Put back the section group with pool %[2]s, and the "+
			"ana_group of the namespace, or move that file away: then %[4]s", n.Object(), is.Pool,
			p.s.at(p.file(n)), withoutPlace)
	})
}

// refuseIf makes the file of a place unusable until it is read again, if wrong returns an error.
func (p *places) refuseIf(n Name, wrong func(is *placeData) error) error {
	p.changing.RLock() // a file that is refused is not restored meanwhile
	defer p.changing.RUnlock()
	err := p.kind.check(n)
	is, _ := p.get(n)
	if err != nil || is == nil {
		return err
	}
	if err = wrong(is); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.bad[p.file(n)] = err
		delete(p.kept, n)
		delete(p.data, n)
	}
	return err
}

// note notes the place of the promises of a namespace, unless it is noted, and that the object has
// been there.
func (p *places) note(n Name, pool string, stored bool) error {
	p.noting.Lock()
	defer p.noting.Unlock()
	if is, _ := p.get(n); is != nil && (is.Stored || !stored) || is == nil && pool == "" {
		return nil
	} else if is != nil {
		pool = is.Pool
	}
	d := placeData{n, pool, stored}
	return p.set(n, &d, d)
}

// Object returns the name of the object of Shared.
func (n Name) Object() string { return "nvmf.reservations." + n.ID() }

// NoPromises is the content of an object that an operator has written in place of one that is lost:
// there are no promises.
const NoPromises = "none"

// MaxShared is the size limit of Shared in bytes.
const MaxShared = mostKept

// EncodeShared returns the content of the object of a namespace.
func EncodeShared(n Name, s *Shared) ([]byte, error) {
	d := sharedData{reservationsData: reservationsOf(n, s.Reservations), Protected: s.Protected}
	if s.Uncorrectable != nil {
		u := marksOf(s.Uncorrectable)
		d.Uncorrectable = &u
	}
	return encode(reservationsKind, d)
}

// DecodeShared is the inverse of EncodeShared.
func DecodeShared(n Name, text []byte) (*Shared, error) {
	var d sharedData
	switch {
	case len(text) > mostKept:
		return nil, errors.New("it is too large")
	case string(bytes.TrimSpace(text)) == NoPromises:
		return &Shared{Reservations: &reservation.State{}}, nil
	}
	if err := decode(reservationsKind, text, &d); err != nil {
		return nil, err
	}
	if d.Name != n {
		return nil, fmt.Errorf("it is for namespace %d of %q", d.NSID, d.NQN)
	}
	r, err := d.value()
	s := &Shared{Reservations: r, Protected: d.Protected}
	if err == nil && d.Uncorrectable != nil {
		s.Uncorrectable, err = d.Uncorrectable.kept()
	}
	return s, err
}

// Reservations implements reservation.Store.
type Reservations struct {
	*kind[reservation.State, reservationsData]
}

func (r *Reservations) Save(nqn string, nsid uint32, now *reservation.State) error {
	n := Name{nqn, nsid}
	return r.set(n, now, reservationsOf(n, now))
}

// marksData is uncorrectable blocks.
type marksData struct {
	// Identity identifies the storage.
	Identity string `json:"identity"`
	// Ranges are in bytes, each with its begin and end.
	Ranges [][2]int64 `json:"ranges"`
}

func (d *marksData) kept() (*marks.Kept, error) {
	u := &marks.Kept{Identity: d.Identity}
	for _, r := range d.Ranges {
		u.Ranges = append(u.Ranges, backend.Range{Off: r[0], End: r[1]})
	}
	return u, u.Validate()
}

func marksOf(u *marks.Kept) (d marksData) {
	d.Identity = u.Identity
	for _, r := range u.Ranges {
		d.Ranges = append(d.Ranges, [2]int64{r.Off, r.End})
	}
	return d
}

// uncorrectableData is the content of a file of uncorrectable blocks.
type uncorrectableData struct {
	Name
	marksData
}

func (d uncorrectableData) value() (*marks.Kept, error) { return d.kept() }

// Uncorrectable implements marks.Store.
type Uncorrectable struct {
	*kind[marks.Kept, uncorrectableData]
}

func (u *Uncorrectable) Save(nqn string, nsid uint32, now *marks.Kept) error {
	d := uncorrectableData{Name: Name{nqn, nsid}}
	if now != nil {
		d.marksData = marksOf(now)
	}
	return u.set(d.Name, now, d)
}
