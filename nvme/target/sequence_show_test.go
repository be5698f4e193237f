package target

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// sequenceNames are names of values of arguments.
var sequenceNames = map[string]uint64{
	"all-namespaces": uint64(nvme.NSIDAll),

	"namespaces": uint64(nvme.EventNamespaceChanged), "ana": uint64(nvme.EventANAChanged),
	"discovery": uint64(nvme.EventDiscoveryChanged), "temperature": uint64(nvme.EventTemperature),
	"reliability": uint64(nvme.EventReliability), "spare": uint64(nvme.EventSpareLow),

	"write-exclusive": 1, "exclusive-access": 2, "write-exclusive-registrants": 3,
	"exclusive-access-registrants": 4, "write-exclusive-all": 5, "exclusive-access-all": 6,
	"unregister": 1, "replace": 2, "preempt": 1, "preempt-and-abort": 2, "clear": 1,
	"set-ptpl": 3, "clear-ptpl": 2,

	"auth": uint64(subsystems.SecurityAuth), "tls": uint64(subsystems.SecurityTLS),

	"no-write-protect": 0, "write-protect": 1, "until-power-cycle": 2, "permanent": 3,
	"local-only": nvme.DiscoveryLocal, "groups-only": uint64(nvme.ANAGroupsOnly),

	"linux": uint64(nvme.CCLinux), "enable": uint64(nvme.CCEnable),
	"shutdown": uint64(nvme.CCShutdownNormal), "abrupt": uint64(nvme.CCShutdownAbrupt),
	"all-command-sets":   uint64(nvme.CSSAllIO) << 4,
	"auth-send":          uint64(nvme.FabricsAuthSend),
	"auth-receive":       uint64(nvme.FabricsAuthReceive),
	"fabrics-disconnect": uint64(nvme.FabricsDisconnect),
	"sgl-invalid":        uint64(nvme.SGLTypeInvalid | nvme.DNR),
	"transport-error":    uint64(nvme.TransientTransportError),
	"static":             uint64(nvme.CNTLIDStatic), "dynamic": uint64(nvme.CNTLIDDynamic),
}

var cnsNames = map[string]uint64{
	"namespace": uint64(nvme.CNSNamespace), "controller": uint64(nvme.CNSController),
	"active-namespaces":    uint64(nvme.CNSActiveNamespaces),
	"descriptors":          uint64(nvme.CNSDescriptors),
	"nvm-namespace":        uint64(nvme.CNSCommandSetNamespace),
	"nvm-controller":       uint64(nvme.CNSCommandSetController),
	"nvm-active":           uint64(nvme.CNSCommandSetActive),
	"independent":          uint64(nvme.CNSIndependentNamespace),
	"allocated":            uint64(nvme.CNSAllocatedNamespaces),
	"allocated-namespace":  uint64(nvme.CNSAllocatedNamespace),
	"attached-controllers": uint64(nvme.CNSAttachedControllers),
	"controllers":          uint64(nvme.CNSControllers),
	"endurance-groups":     uint64(nvme.CNSEnduranceGroups),
	"command-sets":         uint64(nvme.CNSCommandSets),
}

var logNames = map[string]uint64{
	"supported-pages": uint64(nvme.LogSupportedPages), "error": uint64(nvme.LogError),
	"smart": uint64(nvme.LogSMART), "firmware": uint64(nvme.LogFirmwareSlot),
	"changed-namespaces": uint64(nvme.LogChangedNamespaces),
	"effects":            uint64(nvme.LogEffects), "self-test": uint64(nvme.LogSelfTest),
	"telemetry-host":       uint64(nvme.LogTelemetryHost),
	"telemetry-controller": uint64(nvme.LogTelemetryCtrl),
	"endurance-group":      uint64(nvme.LogEnduranceGroup), "ana": uint64(nvme.LogANA),
	"feature-effects": uint64(nvme.LogFeatureEffects), "mi-effects": uint64(nvme.LogMIEffects),
	"rotational-media": uint64(nvme.LogRotationalMedia), "discovery": uint64(nvme.LogDiscovery),
	"reservation": uint64(nvme.LogReservation), "sanitize": 0x81,
}

// logSizes are how many bytes a host reads of a log, 512 if it is not here.
var logSizes = map[nvme.LID]int{
	nvme.LogSupportedPages: nvme.SupportedPagesSize, nvme.LogChangedNamespaces: 4096,
	nvme.LogEffects: nvme.EffectsLogSize, nvme.LogSelfTest: nvme.SelfTestLogSize,
	nvme.LogFeatureEffects: nvme.FeatureEffectsSize,
	nvme.LogANA:            int(ana.LogSize(namespaces.MaxNSID)),
	nvme.LogDiscovery:      16 << 10, nvme.LogReservation: nvme.ReservationLogSize,
	nvme.LogError: 64 * 64,
}

var featureNames = map[string]uint64{
	"arbitration": uint64(nvme.FeatureArbitration), "power": uint64(nvme.FeaturePowerManagement),
	"temperature-threshold": uint64(nvme.FeatureTemperatureThreshold),
	"error-recovery":        uint64(nvme.FeatureErrorRecovery),
	"write-cache":           uint64(nvme.FeatureVolatileWriteCache),
	"number-of-queues":      uint64(nvme.FeatureNumberOfQueues),
	"interrupt-coalescing":  0x08, "interrupt-vector": 0x09,
	"async-event":         uint64(nvme.FeatureAsyncEventConfig),
	"timestamp":           uint64(nvme.FeatureTimestamp),
	"keep-alive":          uint64(nvme.FeatureKeepAliveTimer),
	"host-behavior":       uint64(nvme.FeatureHostBehavior),
	"command-sets":        uint64(nvme.FeatureCommandSetProfile),
	"spinup":              uint64(nvme.FeatureSpinupControl),
	"host-identifier":     uint64(nvme.FeatureHostIdentifier),
	"reservation-mask":    uint64(nvme.FeatureReservationMask),
	"reservation-persist": uint64(nvme.FeatureReservationPersist),
	"write-protect":       uint64(nvme.FeatureWriteProtect),
}

var propertyNames = map[string]uint64{
	"CAP": uint64(nvme.PropertyCAP), "VS": uint64(nvme.PropertyVS), "CC": uint64(nvme.PropertyCC),
	"CSTS": uint64(nvme.PropertyCSTS), "NSSR": uint64(nvme.PropertyNSSR),
	"CRTO": uint64(nvme.PropertyCRTO),
}

var eventNames = map[nvme.AsyncEvent]string{
	nvme.AsyncNamespaceChanged: "namespaces have changed: log changed-namespaces",
	nvme.AsyncDiscoveryChanged: "the discovery log has changed: log discovery",
	nvme.AsyncANAChanged:       "ANA states have changed: log ana",
	nvme.AsyncReliability:      "reliability: log smart",
	nvme.AsyncTemperature:      "temperature: log smart",
	nvme.AsyncSpareLow:         "the spare is low: log smart",
	nvme.AsyncReservation:      "reservation notifications: log reservation",
}

// fields returns the fields of a record as NAME=value: the named ones, or all that are not 0.
func fields(record any, names []string) string {
	var words []string
	v := reflect.Indirect(reflect.ValueOf(record))
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		if name == "_" || names == nil && f.IsZero() ||
			names != nil && !slices.Contains(names, name) {
			continue
		}
		if v.Type().Name() == "ErrorLogEntry" && name == "CID" { // CIDs of tests differ
			continue
		}
		words = append(words, name+"="+fieldValue(name, f))
	}
	for _, name := range names {
		if !v.FieldByName(name).IsValid() {
			words = append(words, "no "+name)
		}
	}
	return wrapWords(words)
}

// textFields are ASCII.
var textFields = []string{"SN", "MN", "FR", "SUBNQN", "TRADDR", "TRSVCID"}

func fieldValue(name string, f reflect.Value) string {
	switch v := f.Interface().(type) {
	case nvme.Uint128:
		n, _ := v.Uint64()
		return fmt.Sprint(n)
	case fmt.Stringer:
		return fmt.Sprintf("%q", v)
	}
	switch f.Kind() {
	case reflect.Struct:
		return "{" + strings.TrimSpace(fields(f.Interface(), nil)) + "}"
	case reflect.Array:
		if slices.Contains(textFields, name) {
			return fmt.Sprintf("%q", nvme.Text(f.Bytes()))
		}
		if strings.HasSuffix(name, "CAP") && f.Len() == 16 {
			n, _ := nvme.Uint128(f.Bytes()).Uint64()
			return fmt.Sprint(n)
		}
		if f.Type().Elem().Kind() == reflect.Uint8 {
			return hex.EncodeToString(bytes.TrimRight(f.Bytes(), "\x00"))
		}
		var words []string
		for i := range f.Len() {
			if e := f.Index(i); !e.IsZero() {
				words = append(words, fmt.Sprintf("%d:%s", i, fieldValue("", e)))
			}
		}
		return "[" + strings.Join(words, " ") + "]"
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		// a field with a type of its own is a set of bits or a code
		bits := name
		if t := f.Type().Name(); strings.HasPrefix(t, "Independent") {
			bits = t
		}
		if n := f.Uint(); name == "DSTS" {
			return selfTests[n>>4] + selfTestOutcomes[n&15]
		} else if name == "Status" {
			return fmt.Sprintf("%q", nvme.Status(n>>1)&^nvme.More)
		} else if names := bitNames[bits]; names != nil {
			return "(" + strings.Join(bitsOf(n, names), ",") + ")"
		} else if name == "NSID" && n == uint64(nvme.NSIDAll) {
			return "all"
		} else if name == "Location" && n != uint64(nvme.LocationNone) {
			return fmt.Sprintf("byte-%d,bit-%d", n&0xFF, n>>8)
		} else if f.Type().PkgPath() != "" {
			return fmt.Sprintf("%#x", n)
		} else if name == "LBA" && n > 1<<32 {
			return fmt.Sprintf("%#x", n)
		}
	}
	return fmt.Sprint(f.Interface())
}

// bitNames are the bits of fields, from bit 0 on.
var bitNames = map[string][]string{
	"ONCS": {
		"compare", "write-uncorrectable", "dataset-management", "write-zeroes", "save-select",
		"reservations", "timestamp", "verify", "copy",
	},
	"OACS": {4: "self-test"}, "FUSES": {"compare-and-write"},
	"CMIC":   {"multiple-ports", "multiple-controllers", "", "ana"},
	"CTRATT": {0: "128-bit-host-id", 4: "endurance-groups", 6: "traffic-keeps-alive"},
	"LPA": {
		"smart-per-namespace", "effects", "extended-data", "telemetry", "", "supported-pages",
	},
	"VWC":  {"present", "flush-all-1", "flush-all-2"},
	"SGLS": {0: "supported", 2: "keyed", 20: "offset", 21: "transport-data-block"},
	"OAES": {
		0: "spare", 1: "temperature", 2: "reliability", 8: "namespaces", 11: "ana", 31: "discovery",
	},
	"NSFEAT":            {0: "thin", 1: "atomics", 4: "optimal-io"},
	"IndependentNSFEAT": {4: "rotational"}, "NMIC": {"shared"},
	"NSATTR": {"write-protected"}, "NSTAT": {"ready"},
	"CriticalWarning": {"spare-low", "temperature", "reliability", "read-only", "volatile-memory"},
	"DLFEAT":          {"reads-zeroes", "", "", "write-zeroes-deallocates"},
	"RESCAP": {
		"ptpl", "write-exclusive", "exclusive-access", "write-exclusive-registrants",
		"exclusive-access-registrants", "write-exclusive-all", "exclusive-access-all", "iekey-1.3",
	},
}

// The parts of DSTS: an operation, and how it has ended.
var (
	selfTests        = [16]string{1: "short-", 2: "extended-"}
	selfTestOutcomes = [16]string{
		"passed", "aborted", "aborted-by-reset", "namespace-removed", 7: "segment-failed",
		8: "aborted-otherwise", 15: "no-result",
	}
)

func bitsOf(n uint64, names []string) (words []string) {
	for i := range 64 {
		if n>>i&1 == 0 {
			continue
		}
		word := fmt.Sprintf("bit%d", i)
		if i < len(names) && names[i] != "" {
			word = names[i]
		}
		words = append(words, word)
	}
	return words
}

// wrapWords puts words one after the other, or on lines of their own if they are many.
func wrapWords(words []string) string {
	line := " " + strings.Join(words, " ")
	if len(words) == 0 {
		return ""
	} else if len(line) < 90 {
		return line
	}
	var b strings.Builder
	n := 100
	for _, w := range words {
		if n+len(w) > 90 {
			b.WriteString("\n ")
			n = 1
		}
		b.WriteString(" " + w)
		n += 1 + len(w)
	}
	return b.String()
}

// show shows a record.
func show[T nvme.Record](s *sequence, a *arguments, b []byte) string {
	r, err := nvme.Parse[T](b)
	s.r.must(err)
	return fields(r, a.list("fields"))
}

func showIdentify(s *sequence, a *arguments, c *fabrictest.Command) string {
	if a.flag("quiet") {
		return ""
	}
	if !bytes.ContainsFunc(c.Data, func(r rune) bool { return r != 0 }) {
		return " zeroes"
	}
	switch cns := nvme.CNS(a.named(1, cnsNames)); cns {
	case nvme.CNSNamespace, nvme.CNSAllocatedNamespace:
		return show[nvme.IdentifyNamespace](s, a, c.Data)
	case nvme.CNSIndependentNamespace:
		return show[nvme.IdentifyNamespaceIndependent](s, a, c.Data)
	case nvme.CNSController:
		return show[nvme.IdentifyController](s, a, c.Data)
	case nvme.CNSActiveNamespaces, nvme.CNSCommandSetActive, nvme.CNSAllocatedNamespaces:
		l, err := targettest.ParseNamespaceList(c.Data)
		s.r.must(err)
		return fmt.Sprint(" ", l)
	case nvme.CNSDescriptors:
		ids, err := nvme.ParseNamespaceIDs(c.Data)
		s.r.must(err)
		var words []string
		for _, id := range ids {
			name := [...]string{1: "EUI64", 2: "NGUID", 3: "UUID", 4: "CSI"}[id.Type]
			words = append(words, name+"="+hex.EncodeToString(id.ID))
		}
		return wrapWords(words)
	case nvme.CNSAttachedControllers, nvme.CNSControllers, nvme.CNSEnduranceGroups:
		n := int(c.Data[0])
		var l []int
		for i := 1; i <= n; i++ {
			l = append(l, int(c.Data[2*i])|int(c.Data[2*i+1])<<8)
		}
		if rest := c.Data[2*n+2:]; len(bytes.Trim(rest, "\x00")) > 0 {
			return " bytes after the list"
		}
		return fmt.Sprint(" ", l)
	}
	return " " + hex.EncodeToString(bytes.TrimRight(c.Data, "\x00"))
}

func showLog(s *sequence, a *arguments, c *fabrictest.Command) string {
	if a.flag("show-data") {
		return fmt.Sprintf(" %q", bytes.TrimRight(c.Data, "\x00"))
	}
	if a.flag("quiet") || a.number("offset", 0) > 0 || a.number("bytes", 4096) < 64 {
		return ""
	}
	h := s.host(a, 0)
	switch lid := nvme.LID(a.named(1, logNames)); lid {
	case nvme.LogSupportedPages:
		p, err := nvme.Parse[nvme.SupportedPages](c.Data)
		s.r.must(err)
		return listed(p[:])
	case nvme.LogFeatureEffects:
		p, err := nvme.Parse[nvme.FeatureEffectsLog](c.Data)
		s.r.must(err)
		return listed(p[:])
	case nvme.LogEffects:
		p, err := nvme.Parse[nvme.EffectsLog](c.Data)
		s.r.must(err)
		io := "\n  I/O" + listed(p.IO[:])
		if a.list("fields") != nil { // I/O commands depend on the namespaces, others do not
			return io
		}
		return "\n  admin" + listed(p.Admin[:]) + io
	case nvme.LogError:
		return showErrors(s, a, c.Data)
	case nvme.LogSMART:
		return show[nvme.SMARTLog](s, a, c.Data)
	case nvme.LogFirmwareSlot:
		l, err := nvme.Parse[nvme.FirmwareLog](c.Data)
		s.r.must(err)
		return fmt.Sprintf(" AFI=%d FRS1=%q", l.AFI, nvme.Text(l.FRS[0][:]))
	case nvme.LogChangedNamespaces:
		l, err := targettest.ParseNamespaceList(c.Data)
		s.r.must(err)
		return fmt.Sprint(" ", l)
	case nvme.LogSelfTest:
		l, err := nvme.Parse[nvme.SelfTestLog](c.Data)
		s.r.must(err)
		var b strings.Builder
		fmt.Fprintf(&b, " operation=%d completion=%d%%", l.Operation, l.Completion)
		for i, r := range l.Results[:a.number("results", 1)] {
			fmt.Fprintf(&b, "\n  result %d:%s", i, fields(r, nil))
		}
		return b.String()
	case nvme.LogEnduranceGroup:
		return show[nvme.EnduranceGroupLog](s, a, c.Data)
	case nvme.LogRotationalMedia:
		return show[nvme.RotationalMediaLog](s, a, c.Data)
	case nvme.LogReservation:
		return show[nvme.ReservationLog](s, a, c.Data)
	case nvme.LogTelemetryCtrl:
		return show[nvme.TelemetryHeader](s, a, c.Data)
	case nvme.LogANA:
		return showANA(s, c.Data)
	case nvme.LogDiscovery:
		return showDiscovery(s, h, a, c.Data)
	}
	return ""
}

// listed returns the numbers of the elements that are not 0, by their value.
func listed[E ~uint32](l []E) string {
	byValue := map[E][]string{}
	for i, v := range l {
		if v != 0 {
			byValue[v] = append(byValue[v], fmt.Sprintf("%02Xh", i))
		}
	}
	var b strings.Builder
	keys := make([]E, 0, len(byValue))
	for v := range byValue {
		keys = append(keys, v)
	}
	for _, v := range slices.Sorted(slices.Values(keys)) {
		fmt.Fprintf(&b, "\n  %#x: %s", uint32(v), strings.Join(byValue[v], " "))
	}
	return b.String()
}

func showErrors(s *sequence, a *arguments, b []byte) string {
	var out strings.Builder
	var words []string
	for i := range int(a.number("entries", uint64(len(b)/nvme.ErrorLogEntrySize))) {
		e, err := nvme.Parse[nvme.ErrorLogEntry](b[i*nvme.ErrorLogEntrySize:])
		s.r.must(err)
		if e.Count == 0 {
			break
		}
		if i == 0 && e.CID != s.failed {
			return " the CID is that of another command"
		}
		text := strings.TrimSpace(fields(e, a.list("fields")))
		if out.WriteString("\n  " + text); len(text) < 20 { // of one field
			out.Reset()
			words = append(words, text)
		}
	}
	return wrapWords(words) + out.String()
}

func showANA(s *sequence, b []byte) string {
	l, groups, err := targettest.ParseANALog(b)
	s.r.must(err)
	out := fmt.Sprintf(" changes=%d", l.CHGC)
	for _, g := range groups {
		out += fmt.Sprintf("\n  group %d: %v changes=%d namespaces=%v", g.AGID, g.ANAS, g.CHGC,
			g.NSIDs)
	}
	return out
}

func showDiscovery(s *sequence, h *host, a *arguments, b []byte) string {
	header, err := targettest.ParseDiscoveryHeader(b)
	s.r.must(err)
	out := fmt.Sprintf(" generation=%d entries=%d", header.GENCTR, header.NUMREC)
	if header.RECFMT != 0 {
		out += fmt.Sprintf(" format=%d", header.RECFMT)
	}
	if a.flag("header") {
		return out
	}
	for b = b[nvme.DiscoveryHeaderSize:]; header.NUMREC > 0; header.NUMREC-- {
		e, err := nvme.Parse[nvme.DiscoveryEntry](b)
		s.r.must(err)
		nqn, err := nvme.ParseNQN(&e.SUBNQN)
		s.r.must(err)
		flags := ""
		if e.EFLAGS != 0 {
			flags = fmt.Sprintf(" flags=%#x", uint16(e.EFLAGS))
		}
		if e.CNTLID != nvme.CNTLIDDynamic || e.ASQSZ < 32 {
			flags += fmt.Sprintf(" CNTLID=%#x ASQSZ=%d", e.CNTLID, e.ASQSZ)
		}
		out += fmt.Sprintf("\n  port %d %v IPv%d %s %s: %s %s TREQ=%#x%s", e.PORTID, e.TRTYPE,
			2+2*e.ADRFAM, nvme.Text(e.TRADDR[:]), nvme.Text(e.TRSVCID[:]),
			[...]string{1: "referral", 2: "subsystem", 3: "discovery"}[e.SUBTYPE], nameOf(nqn),
			uint8(e.TREQ), flags)
		if sec := e.TCPSecurity(); sec != nvme.TCPNoSecurity && e.TRTYPE == nvme.TransportTCP {
			out += fmt.Sprintf(" SECTYPE=%d", sec)
		}
		b = b[nvme.DiscoveryEntrySize:]
	}
	return out
}

func showFeature(_ *sequence, _ *arguments, c *fabrictest.Command) string {
	out := fmt.Sprintf(" value=%#x", c.CQE.DW0())
	if c.SQE.Opcode() == nvme.AdminGetFeatures && len(c.Data) == 8 { // a timestamp
		by := map[byte]string{0: "", 1 << 1: ", set by the host"}[c.Data[6]]
		c.Data[6] = 0
		return fmt.Sprintf(" %d ms%s", binary.LittleEndian.Uint64(c.Data), by)
	}
	if c.Returned > 0 {
		out += fmt.Sprintf(" data=%x, %d bytes", bytes.TrimRight(c.Data, "\x00"), len(c.Data))
	}
	return out
}

// showData shows the byte of which all data of a read consists.
func showData(_ *sequence, a *arguments, c *fabrictest.Command) string {
	switch {
	case a.flag("zero-blocks"):
		n := 0
		for block := range slices.Chunk(c.Data, int(a.number("block", 512))) {
			if len(bytes.Trim(block, "\x00")) == 0 {
				n++
			}
		}
		return fmt.Sprintf(" %d blocks of zeroes", n)
	case !a.flag("show"):
		return ""
	case bytes.Count(c.Data, c.Data[:1]) < len(c.Data):
		return " different bytes"
	}
	return fmt.Sprintf(" %d bytes %02Xh", len(c.Data), c.Data[0])
}

func showReport(s *sequence, a *arguments, c *fabrictest.Command) string {
	if len(c.Data) < nvme.ReservationStatusSize || a.flag("quiet") {
		return ""
	}
	status, err := nvme.Parse[nvme.ReservationStatus](c.Data)
	s.r.must(err)
	out := fields(status, nil)
	for i := range int(status.REGCTL) {
		g, err := nvme.Parse[nvme.RegisteredController](
			c.Data[nvme.ReservationStatusSize+i*nvme.RegisteredControllerSize:])
		s.r.must(err)
		out += fmt.Sprintf("\n  host %s: key %d", bytes.TrimRight(g.HostID[:], "\x00"), g.RKEY)
		if g.RCSTS == 1 {
			out += ", holder"
		}
	}
	return out
}
