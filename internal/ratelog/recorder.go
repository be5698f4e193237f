package ratelog

import (
	"container/list"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/secret"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
)

// Recorder is the handler of a log that remembers the most recent lines: refusals of peers, before
// they are limited, and lines from the level of information on. All Loggers in front share it. Any
// goroutine may use it. A line takes a lock; its cost and the total memory are bounded.
type Recorder struct {
	slog.Handler
	*records
}

type records struct {
	mu       sync.Mutex
	text     []byte                    // buffer for the attributes of a line
	refusals list.List                 // of *refusal, most recent at the end
	peers    map[netip.Addr][]*refusal // the same by network, in no order
	kinds    map[*event.Kind]uint64    // counts
	events   []observed.Event          // in their order
	last     uint64                    // ID of the last event
	changed  chan struct{}
}

const (
	// maxRefusals is the number of different refusals that are remembered, and peerRefusals the
	// number of one network. The least recent one of the network, or of all, is replaced.
	maxRefusals  = 512
	peerRefusals = 16
	maxEvents    = 512
	// maxDetails bounds a value in bytes. After a longer line no further values are kept.
	maxDetails = 512
)

// refusal is a Refusal with its attributes encoded in details, and the address remote.
type refusal struct {
	observed.Refusal
	addr    netip.Addr
	kind    *event.Kind
	remote  netip.AddrPort
	details string
	element *list.Element // in records.refusals
}

// NewRecorder makes a Recorder that passes lines on to next.
func NewRecorder(next slog.Handler) *Recorder {
	return &Recorder{next, &records{
		peers: map[netip.Addr][]*refusal{}, kinds: map[*event.Kind]uint64{},
		changed: make(chan struct{}),
	}}
}

func (r *Recorder) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || r.Handler.Enabled(ctx, level)
}

func (r *Recorder) Handle(ctx context.Context, line slog.Record) error {
	line = masked(line)
	if line.Level >= slog.LevelInfo {
		e := observed.Event{
			Time: line.Time, Level: line.Level.String(), Message: line.Message,
			Attributes: []observed.Attribute{}, // not null in JSON
		}
		line.Attrs(func(a slog.Attr) bool {
			e.Attributes = append(e.Attributes,
				observed.Attribute{Key: a.Key, Value: bounded(a.Value.String())})
			return true
		})
		r.record(e)
	}
	if !r.Handler.Enabled(ctx, line.Level) {
		return nil
	}
	return r.Handler.Handle(ctx, line)
}

// WithAttrs implements slog.Handler. Events do not have these attributes.
func (r *Recorder) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Recorder{r.Handler.WithAttrs(attrs), r.records}
}

func (r *Recorder) WithGroup(name string) slog.Handler {
	return &Recorder{r.Handler.WithGroup(name), r.records}
}

// bounded returns the remembered part of a text.
func bounded(s string) string { return secret.Mask(s[:min(len(s), maxDetails)]) }

// masked returns a line without secrets, which a peer may have sent as its name, for instance.
func masked(line slog.Record) slog.Record {
	found := secret.Mask(line.Message) != line.Message
	var attrs []slog.Attr
	line.Attrs(func(a slog.Attr) bool {
		if text := a.Value.String(); secret.Mask(text) != text {
			a.Value, found = slog.StringValue(secret.Mask(text)), true
		}
		attrs = append(attrs, a)
		return true
	})
	if !found {
		return line
	}
	clean := slog.NewRecord(line.Time, line.Level, secret.Mask(line.Message), line.PC)
	clean.AddAttrs(attrs...)
	return clean
}

func (r *records) record(e observed.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	e.ID = r.last
	if len(r.events) == maxEvents {
		r.events = append(r.events[:0], r.events[maxEvents/4:]...)
	}
	r.events = append(r.events, e)
	close(r.changed)
	r.changed = make(chan struct{})
}

// Events returns the remembered events with an ID above since. changed is closed at the next event.
func (r *records) Events(since uint64) (list []observed.Event, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.events)
	for i > 0 && r.events[i-1].ID > since {
		i--
	}
	return slices.Clone(r.events[i:]), r.changed
}

// refused remembers a line about a peer. It does not keep args.
func (r *records) refused(remote netip.AddrPort, k *event.Kind, args []any) {
	now, addr := time.Now(), remote.Addr().Unmap()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kinds[k]++
	r.text = appendDetails(r.text[:0], args)
	e := r.find(addr, k, r.text)
	if e.Count++; e.Count == 1 {
		e.First, e.Message, e.kind, e.details = now, k.Message, k, string(r.text)
	}
	e.Last, e.remote = now, remote
}

// find returns the equal refusal, or a new one. Its cost does not grow with the number remembered:
// peers cause refusals as fast as they can, and reactors wait for the lock.
func (r *records) find(addr netip.Addr, k *event.Kind, details []byte) *refusal {
	network := subnet.Of(addr)
	same := r.peers[network]
	for _, e := range same {
		if e.addr == addr && e.kind == k && e.details == string(details) {
			r.refusals.MoveToBack(e.element)
			return e
		}
	}
	switch {
	case len(same) == peerRefusals:
		r.forget(slices.MinFunc(same, func(a, b *refusal) int { return a.Last.Compare(b.Last) }))
	case r.refusals.Len() == maxRefusals:
		r.forget(r.refusals.Front().Value.(*refusal))
	}
	e := &refusal{addr: addr}
	e.element = r.refusals.PushBack(e)
	r.peers[network] = append(r.peers[network], e)
	return e
}

func (r *records) forget(e *refusal) {
	r.refusals.Remove(e.element)
	network := subnet.Of(e.addr)
	left := slices.DeleteFunc(r.peers[network], func(o *refusal) bool { return o == e })
	if r.peers[network] = left; len(left) == 0 {
		delete(r.peers, network)
	}
}

// Kinds returns the number of refusals of each kind.
func (r *records) Kinds() map[*event.Kind]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.kinds)
}

// Refusals returns the remembered refusals, most recent first.
func (r *records) Refusals() []observed.Refusal {
	r.mu.Lock()
	all := make([]refusal, 0, r.refusals.Len())
	for at := r.refusals.Back(); at != nil; at = at.Prev() {
		all = append(all, *at.Value.(*refusal))
	}
	r.mu.Unlock()
	list := make([]observed.Refusal, len(all))
	for i, e := range all {
		list[i] = e.report()
	}
	return list
}

// report returns the refusal with its attributes.
func (e *refusal) report() observed.Refusal {
	r := e.Refusal
	if e.remote.IsValid() {
		r.Remote = e.remote.String()
	}
	r.Attributes = []observed.Attribute{} // not null in JSON
	for _, a := range details(e.details) {
		switch a.Key {
		case "expected":
			r.Expected = a.Value
		case "received":
			r.Received = a.Value
		case "hint":
			r.Hint = a.Value
		default:
			r.Attributes = append(r.Attributes, a)
		}
	}
	return r
}

// About returns the remembered lines about the host with this name at this address, as given by the
// keys remote and host. It returns nothing if the handler of the log is not a Recorder.
func (l *Logger) About(addr netip.Addr, host string) (events []observed.Event,
	refusals []observed.Refusal,
) {
	if l.records == nil {
		return nil, nil
	}
	addr = addr.Unmap()
	at := func(text string) bool {
		remote, err := netip.ParseAddrPort(text)
		return err == nil && remote.Addr().Unmap() == addr
	}
	is := func(list []observed.Attribute) bool {
		return slices.Contains(list, observed.Attribute{Key: "host", Value: host})
	}
	events, _ = l.records.Events(0)
	events = slices.DeleteFunc(events, func(e observed.Event) bool {
		return !is(e.Attributes) || !slices.ContainsFunc(e.Attributes,
			func(a observed.Attribute) bool { return a.Key == "remote" && at(a.Value) })
	})
	refusals = slices.DeleteFunc(l.records.Refusals(), func(r observed.Refusal) bool {
		return !at(r.Remote) || !is(r.Attributes)
	})
	return events, refusals
}

// appendDetails appends keys and values, each preceded by its length, up to maxDetails bytes.
// Values that need no formatting cause no allocation.
func appendDetails(b []byte, args []any) []byte {
	for i := 0; i+1 < len(args) && len(b) < maxDetails; i += 2 {
		b = appendText(b, args[i])
		b = appendText(b, args[i+1])
	}
	return b
}

func appendText(b []byte, v any) []byte {
	at := len(b)
	b = append(b, 0, 0)
	switch v := v.(type) {
	case string:
		b = append(b, bounded(v)...)
	case error:
		b = append(b, bounded(v.Error())...)
	case netip.AddrPort:
		b = v.AppendTo(b)
	default:
		b = fmt.Append(b, v)
	}
	n := min(len(b)-at-2, maxDetails)
	b[at], b[at+1] = byte(n>>8), byte(n)
	return b[:at+2+n]
}

// details decodes the attributes that appendDetails has encoded.
func details(s string) (list []observed.Attribute) {
	next := func() string {
		n := int(s[0])<<8 | int(s[1])
		text := s[2 : 2+n]
		s = s[2+n:]
		return text
	}
	for len(s) > 0 {
		list = append(list, observed.Attribute{Key: next(), Value: next()})
	}
	return list
}
