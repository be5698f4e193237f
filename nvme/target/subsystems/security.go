package subsystems

import "github.com/nvmf-target/nvmf-target/internal/observed"

// Security is a set of requirements for the hosts of a subsystem, or of the discovery service,
// besides being allowed; see ADR 0037. The zero value requires nothing, though hosts with a key
// authenticate all the same.
type Security uint8

// The requirements.
const (
	SecurityAuth Security = 1 << iota // hosts authenticate
	SecurityTLS                       // connections are encrypted, so not over RDMA
)

// String is the requirement as the configuration has it.
func (r Security) String() string {
	return [...]string{"none", "auth", "tls", "auth+tls"}[r&(SecurityAuth|SecurityTLS)]
}

// SecurityOf returns the requirements that a connection meets.
func SecurityOf(c *observed.Connection) (r Security) {
	if c.TLS != "" {
		r |= SecurityTLS
	}
	if c.Authenticated {
		r |= SecurityAuth
	}
	return r
}
