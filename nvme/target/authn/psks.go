package authn

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// A host that authenticates on an admin queue without TLS may generate a PSK, and connects again
// with it (secure channel concatenation, Base section 8.3.4.5, ADR 0034). The PSK belongs to the
// controller that is created with it, and ends with that controller. It proves that the host has a
// key, so it is of no use once that key does not count.

const (
	// generatedTimeout is how long a generated PSK waits for the host to connect with it.
	generatedTimeout = 30 * time.Second
	// maxGenerated is how many PSKs of a host may wait after their makers have ended.
	maxGenerated = 64
	// generatedConnects is the time that a host needs to connect: no younger PSK makes room.
	generatedConnects = 10 * time.Second
)

// Proof is the proof of the identity of a controller's host. Any reactor may read Proven. The other
// fields belong to the reactor of the controller.
type Proof struct {
	Authenticates bool        // the host had a key when it connected
	Proven        atomic.Bool // the host has authenticated, or had no key

	made *psk // the controller has made it, and it waits; guarded by Hosts.mu
	uses *psk // the controller was created with it
}

// psk is a generated PSK. It is listed until it is wiped.
type psk struct {
	auth.TLSPSK
	host   string
	key    *auth.Key // with which the host authenticated
	made   time.Time
	maker  *Proof // nil: it has ended, or the PSK was used
	users  int    // controllers that were created with it
	expire *time.Timer
}

// AddPSK keeps a PSK that the host of a controller has generated with a key. It replaces the
// waiting PSK of the same controller. Other PSKs of the host stay.
func (h *Hosts) AddPSK(hostNQN string, maker *Proof, k *auth.TLSPSK, key *auth.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if maker.made != nil {
		h.removePSK(maker.made)
	}
	p := &psk{TLSPSK: *k, host: hostNQN, key: key, made: h.Now(), maker: maker}
	p.expire = time.AfterFunc(generatedTimeout, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if p.users == 0 {
			h.removePSK(p)
		}
	})
	h.psks[hostNQN], maker.made = append(h.psks[hostNQN], p), p
}

// removePSK wipes a PSK. The caller holds mu.
func (h *Hosts) removePSK(p *psk) {
	p.expire.Stop()
	clear(p.Secret)
	p.disown()
	list := slices.DeleteFunc(h.psks[p.host], func(o *psk) bool { return o == p })
	if h.psks[p.host] = list; len(list) == 0 {
		delete(h.psks, p.host)
	}
}

// disown ends the bond of a PSK with the controller that has made it.
func (p *psk) disown() {
	if p.maker != nil {
		p.maker.made, p.maker = nil, nil
	}
}

// room reports whether another PSK of a host may wait without its maker. The oldest one makes room,
// unless its host may be connecting with it. The caller holds mu.
func (h *Hosts) room(hostNQN string) bool {
	var oldest *psk
	waiting := 0
	for _, p := range slices.Backward(h.psks[hostNQN]) {
		if p.maker == nil && p.users == 0 {
			waiting++
			oldest = p
		}
	}
	if waiting < maxGenerated {
		return true
	}
	if h.Now().Sub(oldest.made) < generatedConnects {
		return false
	}
	h.removePSK(oldest)
	return true
}

// counting returns the PSK with an identity, or nil, also if the key that it was generated with is
// no longer one of the host's. The caller holds mu.
func (h *Hosts) counting(hostNQN, identity string) *psk {
	policy := h.Policy(hostNQN)
	for _, p := range h.psks[hostNQN] {
		if p.Identity == identity && policy != nil &&
			slices.ContainsFunc(policy.Counting(h.Now()), p.key.Equal) {
			return p
		}
	}
	return nil
}

// UsePSK notes that a controller is created with a PSK, which ReleasePSKs undoes, and returns the
// age of the PSK. ok is false if the PSK has ended, does not count any longer, or is older than an
// authentication is valid for: a controller that exists may go on, but not be followed by others
// for ever.
func (h *Hosts) UsePSK(hostNQN, identity string, user *Proof) (age time.Duration,
	ok bool,
) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.counting(hostNQN, identity)
	if p == nil {
		return 0, false
	}
	age = h.Now().Sub(p.made)
	if valid := h.Policy(hostNQN).Reauthenticate; valid > 0 && age >= valid {
		return 0, false
	}
	p.disown()
	p.users++
	user.uses = p
	return age, true
}

// ReleasePSKs is called when a controller has ended, also one without a PSK.
func (h *Hosts) ReleasePSKs(of *Proof) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := of.made; p != nil {
		if !h.room(p.host) {
			h.removePSK(p)
		}
		p.disown()
	}
	if p := of.uses; p != nil {
		if p.users--; p.users == 0 {
			h.removePSK(p)
		}
	}
}

// PSKCounts reports whether a connection with a generated PSK may be used for something new: not if
// the key that the PSK was generated with has ceased to count since the handshake.
func (h *Hosts) PSKCounts(hostNQN, identity string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counting(hostNQN, identity) != nil
}

// PSK returns a copy of the PSK that a host has generated with this identity, or nil, also if the
// key that it was generated with does not count any longer. The caller wipes it.
func (h *Hosts) PSK(hostNQN, identity string) *auth.TLSPSK {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.counting(hostNQN, identity)
	if p == nil {
		return nil
	}
	k := p.TLSPSK
	k.Secret = slices.Clone(k.Secret)
	return &k
}
