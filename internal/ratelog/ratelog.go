// Package ratelog limits log lines that peers can cause at will, so that they neither fill the disk
// nor hide lines about others. Lines about this machine are not limited, so no peer can suppress
// them. A Recorder remembers refusals of peers.
package ratelog

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
)

// Logger passes a limited number of lines on to another logger. Each kind of event has a budget,
// and in it each network (an IPv4 address or an IPv6 /64) a smaller one. One line for each kind
// reports the number beyond it at the end of the period. Any goroutine may use a Logger, but not
// for each I/O: it takes a lock.
type Logger struct {
	log     *slog.Logger
	records *records // nil: refusals are not remembered

	mu  sync.Mutex
	now *period // nil before the first line
}

const (
	periodLength = 10 * time.Second
	// kindLines is the number of lines of a kind that are passed on in a period, and peerLines the
	// number of lines because of one network. So at most kindLines networks are remembered.
	kindLines = 100
	peerLines = 10
)

// period has the lines of one period.
type period struct {
	end    time.Time
	kinds  map[*event.Kind]*kind
	report *time.Timer // runs once a line was dropped
}

// kind has the lines of one kind.
type kind struct {
	lines, dropped int
	peers          map[netip.Addr]*share // by network
}

// share has the lines because of one network.
type share struct{ lines, dropped int }

// New makes a Logger before log. A Recorder after it remembers all refusals.
func New(log *slog.Logger) *Logger {
	l := &Logger{log: log}
	if r, ok := log.Handler().(*Recorder); ok {
		l.records = r.records
	}
	return l
}

// Peer logs lines caused by one peer. They have the key remote first.
type Peer struct {
	l      *Logger
	remote netip.AddrPort
}

// Peer returns the Peer at remote.
func (l *Logger) Peer(remote netip.AddrPort) Peer { return Peer{l, remote} }

// Report logs an event. It records a refusal in any case.
func (p Peer) Report(k *event.Kind, args ...any) {
	if k.Refusal && p.l.records != nil {
		p.l.records.refused(p.remote, k, args)
	}
	if p.l.Logs(k) && p.l.take(k, subnet.Of(p.remote.Addr())) {
		if p.remote.IsValid() { // otherwise it is on this machine
			args = append([]any{"remote", p.remote}, args...)
		}
		k.Report(p.l.log, args...)
	}
}

// Logs reports whether events of a kind are logged at all.
func (l *Logger) Logs(k *event.Kind) bool {
	return l.log.Enabled(context.Background(), k.Level)
}

// take counts a line and reports whether it is within the budgets.
func (l *Logger) take(of *event.Kind, network netip.Addr) bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.now
	if t == nil || !now.Before(t.end) {
		t = &period{end: now.Add(periodLength), kinds: map[*event.Kind]*kind{}}
		l.now = t
	}
	k := t.kinds[of]
	if k == nil {
		k = &kind{peers: map[netip.Addr]*share{}}
		t.kinds[of] = k
	}
	p := k.peers[network]
	if p == nil && k.lines < kindLines {
		p = &share{}
		k.peers[network] = p
	}
	if p != nil && p.lines < peerLines && k.lines < kindLines {
		p.lines++
		k.lines++
		return true
	}
	k.dropped++
	if p != nil {
		p.dropped++
	}
	if t.report == nil {
		t.report = time.AfterFunc(t.end.Sub(now), func() { l.report(t) })
	}
	return false
}

// report logs the number of lines dropped in a period that has ended.
func (l *Logger) report(t *period) {
	l.mu.Lock()
	if l.now == t {
		l.now = nil
	}
	l.mu.Unlock()
	for of, k := range t.kinds {
		if k.dropped == 0 {
			continue
		}
		args := []any{"lines", k.dropped, "message", of.Message}
		if network, ok := k.worst(); ok {
			args = append(args, "remote", subnet.Text(network))
		}
		of.Dropped().Report(l.log, args...)
	}
}

// worst returns the network with the most dropped lines, if one exceeded its share.
func (k *kind) worst() (network netip.Addr, ok bool) {
	most := 0
	for of, p := range k.peers {
		if p.dropped > most {
			network, most = of, p.dropped
		}
	}
	return network, network.IsValid()
}
