package mdns

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// Service is one instance of a service at one address.
type Service struct {
	// Name is the name of the instance, of at most 63 bytes. Type is as in "_nvme-disc._tcp".
	Name, Type string
	// Host is a name that is unique on the network, without a domain.
	Host string
	Addr netip.AddrPort
	TXT  []string
}

// ttl is the time for which others may keep records, in seconds.
const ttl = 120

const (
	domain       = ".local."
	serviceTypes = "_services._dns-sd._udp" + domain // RFC 6763, section 9
	// cacheFlush: the record is the only one of its name and type (RFC 6762, section 10.2).
	cacheFlush = 1 << 15
)

// maxMessage is the size that fits a frame with any header, in bytes (RFC 6762, section 17).
const maxMessage = 1400

func (s *Service) serviceName() string  { return s.Type + domain }
func (s *Service) hostName() string     { return s.Host + domain }
func (s *Service) instanceName() string { return s.Name + "." + s.serviceName() }

// questions returns the names in queries in lower case, with true for the type of the services.
func questions(list []Service) map[string]bool {
	names := map[string]bool{}
	for i := range list {
		s := &list[i]
		for _, n := range []string{s.instanceName(), s.hostName(), serviceTypes} {
			names[strings.ToLower(n)] = false
		}
		names[strings.ToLower(s.serviceName())] = true
	}
	return names
}

// messages returns responses with all records of services; ttl 0 withdraws them.
func messages(list []Service, ttl uint32) (out [][]byte) {
	for i := 0; i < len(list); {
		b, n := message(list[i:], ttl)
		if i += n; b != nil {
			out = append(out, b)
		}
	}
	return out
}

// message returns a response with the records of the first services, as many as fit, and their
// number. It is nil if the first service cannot be encoded.
func message(list []Service, ttl uint32) (b []byte, n int) {
	for n = range list {
		next, err := encode(list[:n+1], ttl)
		if err != nil && n == 0 {
			return nil, 1
		}
		if err != nil || n > 0 && len(next) > maxMessage {
			return b, n
		}
		b = next
	}
	return b, len(list)
}

func encode(list []Service, ttl uint32) ([]byte, error) {
	m := dnsmessage.Message{Header: dnsmessage.Header{Response: true, Authoritative: true}}
	for i := range list {
		if err := list[i].append(&m, ttl); err != nil {
			return nil, err
		}
	}
	return m.Pack()
}

// append adds the records of the service.
func (s *Service) append(m *dnsmessage.Message, ttl uint32) error {
	var names [4]dnsmessage.Name
	for i, n := range []string{s.serviceName(), s.instanceName(), s.hostName(), serviceTypes} {
		var err error
		if names[i], err = dnsmessage.NewName(n); err != nil {
			return err
		}
	}
	service, instance, host, types := names[0], names[1], names[2], names[3]
	add := func(name dnsmessage.Name, class dnsmessage.Class, body dnsmessage.ResourceBody) {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{
				Name: name, Class: dnsmessage.ClassINET | class, TTL: ttl,
			},
			Body: body,
		})
	}
	if ttl > 0 { // there may be other services of the type
		add(types, 0, &dnsmessage.PTRResource{PTR: service})
	}
	add(service, 0, &dnsmessage.PTRResource{PTR: instance})
	add(instance, cacheFlush, &dnsmessage.SRVResource{Port: s.Addr.Port(), Target: host})
	add(instance, cacheFlush, &dnsmessage.TXTResource{TXT: s.TXT})
	switch ip := s.Addr.Addr(); {
	case ttl == 0: // there may be other services at the address
	case ip.Is4():
		add(host, cacheFlush, &dnsmessage.AResource{A: ip.As4()})
	default:
		add(host, cacheFlush, &dnsmessage.AAAAResource{AAAA: ip.As16()})
	}
	return nil
}

// maxQuestions is the number of questions and known answers of a query that are read.
const maxQuestions = 32

// asks reports whether a packet is a query for a service that is not among its known answers (RFC
// 6762, section 7.1). names is questions(list). Anybody may have sent it.
func asks(packet []byte, list []Service, names map[string]bool) bool {
	var p dnsmessage.Parser
	h, err := p.Start(packet)
	if err != nil || h.Response || h.OpCode != 0 || h.RCode != 0 {
		return false
	}
	asked, others := false, false // for instances, and for other names
	for range maxQuestions {
		q, err := p.Question()
		if err != nil {
			break
		}
		if typ, known := names[strings.ToLower(q.Name.String())]; known {
			asked, others = true, others || !typ || q.Type != dnsmessage.TypePTR
		}
	}
	if !asked || others || p.SkipAllQuestions() != nil {
		return asked
	}
	known := map[string]bool{}
	for range maxQuestions {
		a, err := p.Answer()
		if err != nil {
			break
		}
		if ptr, ok := a.Body.(*dnsmessage.PTRResource); ok && a.Header.TTL >= ttl/2 {
			known[strings.ToLower(ptr.PTR.String())] = true
		}
	}
	return slices.ContainsFunc(list,
		func(s Service) bool { return !known[strings.ToLower(s.instanceName())] })
}
