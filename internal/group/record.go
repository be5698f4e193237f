package group

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
)

// Instance is a gateway with one set of connections to the storage. A gateway that starts again, or
// connects again after a fence, is another instance.
type Instance struct {
	// ID is random.
	ID string `json:"id"`
	// Gateway is the configured name.
	Gateway string `json:"gateway"`
	// Home is the place that only one process of the gateway can use at a time: the ID of its
	// state directory. So an earlier instance with the same Home has ended. "" for none.
	Home string `json:"home,omitempty"`
	// Addrs are the addresses of its connections, as Fence takes them.
	Addrs []string `json:"addrs"`
	// Hosts reports whether hosts that use the group are connected.
	Hosts bool `json:"hosts"`
	// Facts has the settings of an instance that takes part.
	Facts json.RawMessage `json:"facts,omitempty"`
	// Ended: the process of a fenced instance has ended, so its fence has to outlast only the data
	// that the kernel still sends for it.
	Ended bool `json:"ended,omitempty"`
}

// replaces reports whether i is a later instance of the same gateway than j, which has ended.
func (i *Instance) replaces(j *Instance) bool {
	return i.ID != j.ID && i.Gateway == j.Gateway && i.Home != "" && i.Home == j.Home
}

// Record is the state of a group that all gateways share. Records are not changed, but
// replaced.
type Record struct {
	Format int `json:"format"`
	// Instances has the instances that take part, one for each gateway.
	Instances []Instance `json:"instances,omitempty"`
	// Holder is the instance that may have opened the images. No other one opens them before the
	// holder is fenced or has signed off: it has closed them and removed itself from this field.
	Holder *Instance `json:"holder,omitempty"`
	// Taker is the ID of the instance that is taking the group over.
	Taker string `json:"taker,omitempty"`
	// Claim is the ID of an instance that asks the holder for the group.
	Claim string `json:"claim,omitempty"`
	// Fenced are former holders that have not signed off. The holder renews their fences.
	Fenced []Instance `json:"fenced,omitempty"`
	// Promised are names of objects with promises that are known to exist, by Reserve.
	Promised []string `json:"promised,omitempty"`
}

const (
	format = 2
	// withPromises is the format of the record of a group with namespaces that may have
	// reservations or other promises. Programs that share none do not serve it, nor do those of
	// format 3, which do not list the objects.
	withPromises = 4
	// MaxRecord is the maximum size of a record in bytes.
	MaxRecord = 1 << 20
	// maxInstances bounds the lists of instances of a record, maxPromised the one of objects.
	maxInstances, maxPromised = 64, 4096
)

// ParseRecord reads a record with a version, which is 0 before the first one. It accepts exactly
// the results of Bytes.
func ParseRecord(data []byte, version uint64) (*Record, error) {
	if version == 0 {
		return &Record{Format: format}, nil
	}
	r := &Record{}
	if len(data) > MaxRecord {
		return nil, fmt.Errorf("the record of the group has %d bytes, more than %d", len(data),
			MaxRecord)
	}
	text, _, _ := bytes.Cut(data, []byte("\n"))
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("the record of the group is damaged: %w", err)
	}
	if r.Format < format || r.Format > withPromises {
		return nil, fmt.Errorf("the record of the group has format %d: this version knows only "+
			"%d to %d", r.Format, format, withPromises)
	}
	if again, err := r.Bytes(); err != nil || !bytes.Equal(again, data) {
		return nil, errors.New("the record of the group is damaged: its checksum or its form is " +
			"wrong")
	}
	if len(r.Instances) > maxInstances || len(r.Fenced) > maxInstances ||
		len(r.Promised) > maxPromised {
		return nil, fmt.Errorf("the record of the group has more than %d instances, or %d objects",
			maxInstances, maxPromised)
	}
	return r, nil
}

// Bytes returns the record as State keeps it: JSON, and a line with the CRC32C of it. It fails if
// ParseRecord would refuse it.
func (r *Record) Bytes() ([]byte, error) {
	data, err := json.Marshal(r)
	data = fmt.Appendf(data, "\n%s", checksum(data))
	if err == nil && len(data) > MaxRecord {
		err = fmt.Errorf("the record of the group would have %d bytes, more than %d: make the "+
			"names of gateways shorter", len(data), MaxRecord)
	}
	return data, err
}

// checksum returns a line with the CRC32C of data.
func checksum(data []byte) string {
	return fmt.Sprintf("%08x\n", crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
}

// instance returns the instance with this ID that takes part, nil if there is none.
func (r *Record) instance(id string) *Instance { return find(r.Instances, id) }

func find(list []Instance, id string) *Instance {
	i := slices.IndexFunc(list, func(x Instance) bool { return x.ID == id })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// without returns the list without the instances that drop selects.
func without(list []Instance, drop func(*Instance) bool) []Instance {
	return slices.DeleteFunc(slices.Clone(list), func(i Instance) bool { return drop(&i) })
}

// promises reports whether all objects of the list are in the record. "" stands for its format.
func (r *Record) promises(objects ...string) bool {
	return r.Format == withPromises && !slices.ContainsFunc(objects, func(name string) bool {
		return name != "" && !slices.Contains(r.Promised, name)
	})
}

// promise adds objects. The ones that were added first make room.
func (r *Record) promise(objects []string) {
	r.Format, r.Promised = withPromises, slices.Clone(r.Promised)
	for _, name := range objects {
		if !r.promises(name) {
			r.Promised = append(r.Promised, name)
		}
	}
	r.Promised = r.Promised[max(len(r.Promised)-maxPromised, 0):]
}

// holds reports whether the instance with this ID is the holder.
func (r *Record) holds(id string) bool { return r.Holder != nil && r.Holder.ID == id }
