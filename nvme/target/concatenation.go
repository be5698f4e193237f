package target

import (
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
)

// This file is secure channel concatenation: a host authenticates on an admin queue without TLS,
// which generates a PSK, and connects again with it (Base section 8.3.4.5, ADR 0034). The PSK
// belongs to the controller that is created with it, and ends with that. It proves that the host
// has a key, so nothing more is had with it once that key does not count.

const (
	// generatedTimeout is how long a generated PSK waits for the host to connect with it.
	generatedTimeout = 30 * time.Second
	// maxGenerated is how many of a host wait beside the controllers that have made them.
	maxGenerated = 64
	// generatedConnects is how long hosts need to connect: nothing younger makes room.
	generatedConnects = 10 * time.Second
)

// generatedPSKs are the PSKs that hosts have generated. Any goroutine may use them.
type generatedPSKs struct {
	mu   sync.Mutex
	psks map[string][]*generatedPSK // by the NQN of the host, in their order
}

// generatedPSK is in the list until it is wiped.
type generatedPSK struct {
	auth.TLSPSK
	key         *auth.Key // with which the host authenticated
	made        time.Time
	maker       *controller // nil: it has ended, or the PSK was used
	controllers int         // that were created with it
	expire      *time.Timer
}

// add keeps a PSK that the host of a controller has generated with a key. It replaces the waiting
// PSK of the same controller. PSKs of the host that wait without their controller stay.
func (g *generatedPSKs) add(c *controller, psk *auth.TLSPSK, key *auth.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	hostNQN := c.hostNQN
	if o := g.madeBy(c); o != nil {
		g.remove(hostNQN, o)
	}
	p := &generatedPSK{TLSPSK: *psk, key: key, made: time.Now(), maker: c}
	p.expire = time.AfterFunc(generatedTimeout, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if p.controllers == 0 {
			g.remove(hostNQN, p)
		}
	})
	g.psks[hostNQN] = append(g.psks[hostNQN], p)
}

// madeBy returns the PSK that a controller has made and that waits, or nil. The caller holds mu.
func (g *generatedPSKs) madeBy(c *controller) *generatedPSK {
	for _, p := range g.psks[c.hostNQN] {
		if p.maker == c {
			return p
		}
	}
	return nil
}

// room reports whether another PSK of a host may wait without its controller. The oldest one makes
// room, unless its host may be connecting with it. The caller holds mu.
func (g *generatedPSKs) room(hostNQN string) bool {
	var oldest *generatedPSK
	waiting := 0
	for _, p := range slices.Backward(g.psks[hostNQN]) {
		if p.maker == nil && p.controllers == 0 {
			waiting++
			oldest = p
		}
	}
	if waiting < maxGenerated {
		return true
	}
	if time.Since(oldest.made) < generatedConnects {
		return false
	}
	g.remove(hostNQN, oldest)
	return true
}

// remove wipes a PSK. The caller holds mu.
func (g *generatedPSKs) remove(hostNQN string, p *generatedPSK) {
	p.expire.Stop()
	clear(p.Secret)
	list := slices.DeleteFunc(g.psks[hostNQN], func(o *generatedPSK) bool { return o == p })
	if g.psks[hostNQN] = list; len(list) == 0 {
		delete(g.psks, hostNQN)
	}
}

// find returns the PSK with an identity, or nil. The caller holds mu.
func (g *generatedPSKs) find(hostNQN, identity string) *generatedPSK {
	for _, p := range g.psks[hostNQN] {
		if p.Identity == identity {
			return p
		}
	}
	return nil
}

// countsIn reports whether the key that the PSK was generated with is one of the host's now.
func (p *generatedPSK) countsIn(policy *auth.Policy) bool {
	return policy != nil && slices.ContainsFunc(policy.Counting(time.Now()), p.key.Equal)
}

// age is how long ago the host authenticated, 0 without a PSK.
func (p *generatedPSK) age() time.Duration {
	if p == nil {
		return 0
	}
	return time.Since(p.made)
}

// use notes that a controller was created with a PSK, and release that it has ended. use returns
// false if the PSK has ended, does not count any longer, or is older than an authentication is good
// for: a controller that exists may go on, but not be followed by others for ever.
func (g *generatedPSKs) use(c *controller) bool {
	identity := generatedIdentity(c.info)
	if identity == "" {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p, policy := g.find(c.hostNQN, identity), (*c.t.policies.Load())[c.hostNQN]
	if p == nil || !p.countsIn(policy) ||
		policy.Reauthenticate > 0 && p.age() >= policy.Reauthenticate {
		return false
	}
	p.controllers++
	p.maker = nil
	c.generated = p
	return true
}

// release does nothing for a controller that use has refused, and that has made no PSK.
func (g *generatedPSKs) release(c *controller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.madeBy(c); p != nil {
		if !g.room(c.hostNQN) {
			g.remove(c.hostNQN, p)
		}
		p.maker = nil
	}
	if p := c.generated; p != nil {
		if p.controllers--; p.controllers == 0 {
			g.remove(c.hostNQN, p)
		}
	}
}

// counts reports whether a connection may be used for something new: not if the PSK that it uses
// was generated with a key that has ceased to count since the handshake.
func (g *generatedPSKs) counts(t *Target, tls *fabric.TLS) bool {
	if tls.Generated == "" {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.find(tls.HostNQN, tls.Generated)
	return p != nil && p.countsIn((*t.policies.Load())[tls.HostNQN])
}

// GeneratedPSK returns the PSK that a host has generated with this identity, or nil, also if the
// key that it was generated with does not count any longer. The caller wipes it. Any goroutine may
// call it.
func (t *Target) GeneratedPSK(hostNQN, identity string) *auth.TLSPSK {
	t.generated.mu.Lock()
	defer t.generated.mu.Unlock()
	p := t.generated.find(hostNQN, identity)
	if p == nil || !p.countsIn((*t.policies.Load())[hostNQN]) {
		return nil
	}
	psk := p.TLSPSK
	psk.Secret = slices.Clone(psk.Secret)
	return &psk
}

// generatedIdentity is the identity of the generated PSK that a connection uses, "" if none.
func generatedIdentity(q *fabric.QueueInfo) string {
	if q.TLS == nil {
		return ""
	}
	return q.TLS.Generated
}

// concatenation returns the possible purpose of an exchange on the queue besides authentication.
func (s *session) concatenation() auth.Concatenation {
	switch {
	case s.qid != 0 || s.info.Transport != nvme.TransportTCP:
	case s.info.TLS != nil:
		if s.info.TLS.Generated != "" {
			return auth.ReplacePSK
		}
	default:
		ports := s.h.t.discoveryTable.Load().Ports
		i := slices.IndexFunc(ports, func(p discovery.Port) bool { return p.ID == s.info.PortID })
		if i >= 0 && ports[i].TLS == fabric.TLSAllowed {
			return auth.NewPSK
		}
	}
	return auth.NoConcatenation
}
