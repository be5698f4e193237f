package tcp

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
)

// mismatch describes the expected and received value of the wrong field of a PDU for the log.
func (q *queue) mismatch(f pdu.Fault, b []byte) (expected, received string) {
	h := (*pdu.Header)(b[:pdu.HeaderSize])
	switch t := h.Type(); f.FES {
	case pdu.FESSequence:
		return q.inSequence(t), t.String()
	case pdu.FESHeaderDigest:
		return fmt.Sprintf("%08x", pdu.CRC(0, b)), fmt.Sprintf("%08x", f.FEI)
	case pdu.FESOutOfRange:
		d := (*pdu.Data)(b)
		return "the next bytes that an R2T asks for",
			fmt.Sprintf("%d bytes at %d", d.DATAL(), d.DATAO())
	case pdu.FESLimit:
		most := q.params.MaxH2CData
		if t == pdu.TypeCapsuleCmd {
			if most = q.params.InCapsule; len(b) >= pdu.CapsuleCmdSize {
				most = q.inCapsuleMax((*pdu.CapsuleCmd)(b).SQE())
			}
		}
		return fmt.Sprintf("at most %d bytes of data", most), fmt.Sprintf("PLEN %d", h.PLEN())
	case pdu.FESUnsupported:
		return "in-capsule data at offset 0",
			fmt.Sprintf("%#x", (*pdu.CapsuleCmd)(b).SQE().SGL1().Address())
	}
	return q.validField(f.FEI, h, b)
}

// inSequence describes the PDUs that a host may send in the current state.
func (q *queue) inSequence(t pdu.Type) string {
	switch {
	case q.state == queueConnecting:
		return "an ICReq first"
	case t == pdu.TypeCapsuleCmd:
		return fmt.Sprintf("at most %d commands at a time", q.depth)
	case t == pdu.TypeH2CData:
		return "data that an R2T asks for"
	}
	return "one ICReq only"
}

// validField describes the valid values of the header field at an offset, and its value.
func (q *queue) validField(at uint32, h *pdu.Header, b []byte) (expected, received string) {
	t := h.Type()
	switch {
	case at == pdu.OffType:
		return "a type that hosts send", t.String()
	case at == pdu.OffFlags && t == pdu.TypeH2CData && h.Flags()&pdu.LastPDU != 0 &&
		len(b) > pdu.HeaderSize:
		return "LAST_PDU with the last data", "LAST_PDU before"
	case at == pdu.OffFlags:
		return fmt.Sprintf("digests as agreed (header %v, data %v)", q.params.HeaderDigest,
			q.params.DataDigest), fmt.Sprintf("%#02x", uint8(h.Flags()))
	case at == pdu.OffHLEN:
		return fmt.Sprint(t.HLEN()), fmt.Sprint(h.HLEN())
	case at == pdu.OffPDO:
		return "0, or the first byte of the data", fmt.Sprint(h.PDO())
	case at == pdu.OffPLEN && t == pdu.TypeICReq:
		return fmt.Sprint(pdu.ICSize), fmt.Sprint(h.PLEN())
	case at == pdu.OffPLEN:
		return "the length of header and data", fmt.Sprint(h.PLEN())
	case t == pdu.TypeICReq && at == pdu.OffPFV:
		return "0", fmt.Sprint((*pdu.IC)(b).PFV())
	case t == pdu.TypeICReq:
		return "0 to 31", fmt.Sprint((*pdu.IC)(b).PDA())
	}
	return "the length of the data in the PDU", fmt.Sprint((*pdu.Data)(b).DATAL())
}
