package subsystems

import (
	"net/netip"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
)

// TestSecurity: what a host lacks, without and with authentication and TLS.
func TestSecurity(t *testing.T) {
	noKey, noTLS := association.ErrNoKey, association.ErrNoTLS
	for r, want := range map[Security][4]error{ // by authentication, and TLS
		0: {}, SecurityAuth: {noKey, noKey, nil, nil},
		SecurityTLS:                {noTLS, nil, noTLS, nil},
		SecurityAuth | SecurityTLS: {noKey, noKey, noTLS, nil},
	} {
		s := NewSettings(Config{AllowAnyHost: true, Security: r}, nil)
		for i, want := range want {
			a := Applicant{Authenticated: i&2 != 0, Encrypted: i&1 != 0}
			testutil.Is(t, s.Permits(&a, NewHosts()), want, "%v lacks", r)
		}
	}
}

// TestPermits: a host has to come through a listener of the subsystem and from one of its networks,
// and be one of its hosts.
func TestPermits(t *testing.T) {
	s := NewSettings(Config{Hosts: []string{"host"}, Listeners: []string{"a"}}, nil)
	h := NewHosts()
	testutil.True(t, h.SetNetworks("host", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}),
		"networks are no change")
	inside, outside := netip.MustParseAddr("::ffff:10.1.2.3"), netip.MustParseAddr("11.0.0.1")
	for _, tc := range []struct {
		Applicant
		want error
	}{
		{Applicant{NQN: "host", Listener: "a", From: inside}, nil},
		{Applicant{NQN: "host", Listener: "b", From: inside}, association.ErrNotServed},
		{Applicant{NQN: "other", Listener: "a", From: inside}, association.ErrNotAllowed},
		{Applicant{NQN: "host", Listener: "a", From: outside}, association.ErrElsewhere},
	} {
		testutil.Is(t, s.Permits(&tc.Applicant, h), tc.want, "%+v", tc.Applicant)
	}
}
