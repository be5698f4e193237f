package fabric

// TLSPolicy reports whether the connections of a listener use TLS (TCP section 3.6.1).
type TLSPolicy uint8

// The policies. TLSAllowed takes both, told apart by the first bytes.
const (
	TLSOff TLSPolicy = iota
	TLSAllowed
	TLSRequired
)

// String is the word of the configuration.
func (p TLSPolicy) String() string { return [...]string{"off", "allowed", "required"}[p] }

// TLS is what a handshake has shown: the names of the PSK identity, which those of Connect commands
// on the queue have to equal.
type TLS struct {
	HostNQN, SubNQN string
	// Generated is the identity of the PSK if secure channel concatenation has generated it,
	// otherwise "".
	Generated string
	// Cipher is "TLS_AES_128_GCM_SHA256".
	Cipher string
	// Counts reports whether the configured PSK still is one of the host's; nil: it always does.
	// Any goroutine may call it.
	Counts func() bool
}
