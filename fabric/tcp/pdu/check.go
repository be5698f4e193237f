package pdu

// CheckFromHost validates the common header of a PDU that a controller received. It reads nothing
// else, so it can run as soon as 8 bytes have arrived. It does not know whether the type is allowed
// at this time; the caller has to check that.
//
// Type, then HLEN, flags, PLEN and PDO are checked in this order (TCP section 3.6.2; 3.5 on
// errors). Data beyond a limit is FESLimit. A PDU that passes has header, padding, data and digest
// inside PLEN.
func (p *Params) CheckFromHost(h *Header) Fault {
	switch t := h.Type(); t {
	case TypeCapsuleCmd:
		return p.check(h, CapsuleCmdSize, p.CPDA, p.InCapsule, true)
	case TypeH2CData:
		return p.check(h, DataSize, p.CPDA, p.MaxH2CData, false)
	case TypeICReq, TypeH2CTermReq:
		return checkPlain(h, t)
	}
	return Fault{FESInvalidHeader, OffType}
}

// CheckFromController is CheckFromHost for PDUs of a controller. maxC2HData bounds a C2HData.
func (p *Params) CheckFromController(h *Header, maxC2HData uint32) Fault {
	switch t := h.Type(); t {
	case TypeC2HData:
		return p.check(h, DataSize, p.HPDA, maxC2HData, false)
	case TypeCapsuleResp, TypeR2T:
		return p.check(h, t.HLEN(), 0, 0, true)
	case TypeICResp, TypeC2HTermReq:
		return checkPlain(h, t)
	}
	return Fault{FESInvalidHeader, OffType}
}

// checkPlain validates the types that never carry digests: ICReq, ICResp and the TermReqs.
func checkPlain(h *Header, t Type) Fault {
	hlen := t.HLEN()
	if h.HLEN() != hlen {
		return Fault{FESInvalidHeader, OffHLEN}
	}
	most := uint32(hlen)
	if t == TypeH2CTermReq || t == TypeC2HTermReq {
		most = MaxTermReq
	}
	if n := h.PLEN(); n < uint32(hlen) || n > most {
		return Fault{FESInvalidHeader, OffPLEN}
	}
	return Fault{}
}

// check validates types that may have digests, by the required HLEN and the most data bytes.
func (p *Params) check(h *Header, hlen int, align uint8, most uint32, mayBeEmpty bool) Fault {
	if h.HLEN() != hlen {
		return Fault{FESInvalidHeader, OffHLEN}
	}
	f := h.Flags()
	if (f&HDGSTF != 0) != p.HeaderDigest {
		return Fault{FESInvalidHeader, OffFlags}
	}
	plen, first := uint64(h.PLEN()), hlen+p.HeaderDigestSize()
	if plen < uint64(first) {
		return Fault{FESInvalidHeader, OffPLEN}
	}
	// Without data DDGSTF has no meaning, except that it needs to have been agreed on.
	if plen == uint64(first) {
		switch {
		case f&DDGSTF != 0 && !p.DataDigest:
			return Fault{FESInvalidHeader, OffFlags}
		case !mayBeEmpty:
			return Fault{FESInvalidHeader, OffPLEN}
		case most != 0 && h.PDO() != 0 && (h.PDO() < hlen || h.PDO() > first):
			// It is reserved in types that never have data. In a command without data it should be
			// 0, but some hosts set the place where data would begin.
			return Fault{FESInvalidHeader, OffPDO}
		}
		return Fault{}
	}
	if (f&DDGSTF != 0) != p.DataDigest {
		return Fault{FESInvalidHeader, OffFlags}
	}
	if most == 0 || plen <= uint64(first+p.DataDigestSize()) {
		return Fault{FESInvalidHeader, OffPLEN}
	}
	// The largest legal PDU. PDO is a byte, so the bound needs no valid PDO.
	if plen > uint64(most)+uint64(p.DataDigestSize())+255 {
		return Fault{FESLimit, OffPLEN}
	}
	pdo := h.PDO()
	if pdo < first || uint64(pdo+p.DataDigestSize()) >= plen || pdo%((int(align)+1)*4) != 0 {
		return Fault{FESInvalidHeader, OffPDO}
	}
	if p.DataLength(h) > most {
		return Fault{FESLimit, OffPLEN}
	}
	return Fault{}
}

// DataLength returns the number of data bytes in a PDU with a valid common header. PLEN alone shows
// that there are none; PDO may still be set.
func (p *Params) DataLength(h *Header) uint32 {
	if h.PLEN() == uint32(h.HLEN()+p.HeaderDigestSize()) {
		return 0
	}
	return h.PLEN() - uint32(h.PDO()+p.DataDigestSize())
}
