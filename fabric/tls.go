package fabric

// TLSPolicy specifies whether the connections of a listener use TLS (TCP section 3.6.1).
type TLSPolicy uint8

// The policies. TLSAllowed takes both, and tells them apart by the first bytes.
const (
	TLSOff TLSPolicy = iota
	TLSAllowed
	TLSRequired
)

// String returns the word used in the configuration.
func (p TLSPolicy) String() string { return [...]string{"off", "allowed", "required"}[p] }

// TLS is the result of a handshake: the names in the PSK identity, which Connect must equal.
type TLS struct {
	HostNQN, SubNQN string
	// Generated is the identity of a PSK of secure channel concatenation, otherwise "".
	Generated string
	// Cipher is "TLS_AES_128_GCM_SHA256".
	Cipher string
	// Counts reports whether the configured PSK is still one of the keys of the host. A nil Counts
	// means that it always is. Any goroutine may call it.
	Counts func() bool
}
