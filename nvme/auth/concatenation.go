package auth

import (
	"encoding/base64"
	"fmt"
)

// Concatenation is SC_C of AUTH_Negotiate: whether the exchange generates a PSK for TLS. The host
// then connects again with that PSK (Base section 8.3.4.5).
type Concatenation uint8

// The values of SC_C in use.
const (
	NoConcatenation Concatenation = 0
	// NewPSK is for an admin queue without TLS, ReplacePSK for one with a generated PSK.
	NewPSK     Concatenation = 2
	ReplacePSK Concatenation = 3
)

// generate makes the PSK from the challenges C1 and C2 (Base section 8.3.4.5), and derives the PSK
// for TLS, which has a "G" in its identity (TCP section 3.6.1.3). The hash is SHA256 or SHA384, and
// the exchange has a session key.
func (x *exchange) generate(c1, c2 []byte) *TLSPSK {
	generated := x.hash.hmac(x.session, c1, c2)
	defer clear(generated)
	prk := extract(x.hash, generated)
	defer clear(prk)
	digest := base64.StdEncoding.EncodeToString(x.hash.hmac(generated,
		[]byte(x.hostNQN+" "+x.subNQN+" NVMe-over-Fabrics")))
	return &TLSPSK{
		Identity: fmt.Sprintf("NVMe1G%02d %s %s %s", x.hash, x.hostNQN, x.subNQN, digest),
		Hash:     x.hash,
		Secret: expandLabel(x.hash, prk, "nvme-tls-psk",
			fmt.Sprintf("%02d %s", x.hash, digest), false),
	}
}
