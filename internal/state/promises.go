package state

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

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

// MaxReservations is the size limit of the reservations of a namespace in bytes.
const MaxReservations = mostKept

// EncodeReservations returns the content of the file of reservations, which need not persist, for
// another place.
func EncodeReservations(n Name, r *reservation.State) ([]byte, error) {
	return encode(reservationsKind, reservationsOf(n, r))
}

// DecodeReservations is the inverse of EncodeReservations.
func DecodeReservations(n Name, text []byte) (*reservation.State, error) {
	var d reservationsData
	if len(text) > mostKept {
		return nil, errors.New("it is too large")
	}
	if err := decode(reservationsKind, text, &d); err != nil {
		return nil, err
	}
	if d.Name != n {
		return nil, fmt.Errorf("it is for namespace %d of %q", d.NSID, d.NQN)
	}
	return d.value()
}

// Reservations implements reservation.Store.
type Reservations struct {
	*kind[reservation.State, reservationsData]
}

func (r *Reservations) Save(nqn string, nsid uint32, now *reservation.State) error {
	n := Name{nqn, nsid}
	return r.set(n, now, reservationsOf(n, now))
}

// uncorrectableData is the content of a file of uncorrectable blocks.
type uncorrectableData struct {
	Name
	// Identity identifies the storage.
	Identity string `json:"identity"`
	// Ranges are in bytes, each with its begin and end.
	Ranges [][2]int64 `json:"ranges"`
}

func (d uncorrectableData) value() (*marks.Kept, error) {
	u := &marks.Kept{Identity: d.Identity}
	for _, r := range d.Ranges {
		u.Ranges = append(u.Ranges, backend.Range{Off: r[0], End: r[1]})
	}
	return u, u.Validate()
}

// Uncorrectable implements marks.Store.
type Uncorrectable struct {
	*kind[marks.Kept, uncorrectableData]
}

func (u *Uncorrectable) Save(nqn string, nsid uint32, now *marks.Kept) error {
	d := uncorrectableData{Name: Name{nqn, nsid}}
	if now != nil {
		d.Identity = now.Identity
		for _, r := range now.Ranges {
			d.Ranges = append(d.Ranges, [2]int64{r.Off, r.End})
		}
	}
	return u.set(d.Name, now, d)
}
