package admin

import (
	"slices"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Namespace has the data of a namespace for Identify.
type Namespace struct {
	// UUID, NGUID and EUI64 are zero if there is none.
	UUID     uuid.UUID
	NGUID    [16]byte
	EUI64    [8]byte
	ANAGroup uint32
	// EnduranceGroup is ENDGID; 0: none.
	EnduranceGroup uint16
	Reservations   nvme.ReservationCap
	Info           *backend.Info
	// Blocks is the size, and Shift log2 of the block size.
	Blocks uint64
	Shift  uint8
	// ReadOnly reports whether writes are refused. Ready reports whether the storage answers, or
	// may be served by another machine. HidesCapacity reports whether the ANA state hides the size
	// of the content from the host.
	ReadOnly, Ready, HidesCapacity bool
	// Copy has MSSRL, MCL and MSRC.
	MSSRL uint16
	MCL   uint32
	MSRC  uint8
}

// Identify makes CNS 00h (NVM section 4.1.5.1). allocated is how much space the content of a thin
// namespace takes, in bytes; negative: thin provisioning is not reported.
func (n *Namespace) Identify(allocated int64) []byte {
	id := &nvme.IdentifyNamespace{
		NSZE: n.Blocks, NCAP: n.Blocks, NUSE: n.Blocks,
		NMIC: nvme.NMICShared, RESCAP: n.Reservations,
		NGUID: n.NGUID, EUI64: n.EUI64, NSATTR: n.nsattr(),
		ENDGID: n.EnduranceGroup, ANAGRPID: n.ANAGroup,
		DLFEAT: nvme.DLFEATWriteZeroes,
		MSSRL:  n.MSSRL, MCL: n.MCL, MSRC: n.MSRC,
		NVMCAP: nvme.MakeUint128(n.Blocks << n.Shift),
	}
	id.LBAF[0].LBADS = n.Shift
	if n.Info.DiscardZeroes {
		id.DLFEAT |= nvme.DLFEATReadsZeroes
	}
	n.setGranularity(id)
	if allocated >= 0 {
		id.NSFEAT |= nvme.NSFEATThin
		id.NUSE = min(uint64(allocated)>>n.Shift, id.NCAP)
	}
	if n.HidesCapacity {
		id.NUSE, id.NVMCAP = 0, nvme.MakeUint128(0)
	}
	return nvme.Append(nil, id)
}

// setGranularity reports how the namespace is best written (NSFEAT bit 4), and the unit that
// neither a racing command nor a power failure tears (bit 1), if that is more than one block: the
// physical block, where it is aligned (NVM sections 2.1.4 and 4.1.5.1). A fused Compare and Write
// may be as large (NACWU). Linux takes the smaller of NPWG and NAWUPF for the physical block.
func (n *Namespace) setGranularity(id *nvme.IdentifyNamespace) {
	physical, optimal := n.Info.PhysicalBlockSize, n.Info.OptimalIO
	blocks := func(bytes int) uint16 { // 0-based
		return uint16(min(max(bytes>>n.Shift, 1)-1, 0xFFFF))
	}
	if physical > n.Info.BlockSize {
		id.NSFEAT |= nvme.NSFEATAtomics
		id.NAWUN = blocks(physical)
		id.NAWUPF, id.NABSN, id.NABSPF = id.NAWUN, id.NAWUN, id.NAWUN
		id.NACWU = id.NAWUN
	}
	if physical > n.Info.BlockSize || optimal > 0 {
		id.NSFEAT |= nvme.NSFEATOptimalIO
		id.NPWG = blocks(physical)
		id.NPWA, id.NPDG, id.NPDA = id.NPWG, id.NPWG, id.NPWG
		id.NOWS = blocks(max(optimal, physical))
	}
}

func (n *Namespace) nsattr() nvme.NSATTR {
	if n.ReadOnly {
		return nvme.NSATTRWriteProtected
	}
	return 0
}

// Descriptors makes CNS 03h (Base section 5.1.13.2.3).
func (n *Namespace) Descriptors() []byte {
	var ids []nvme.NamespaceID
	if n.EUI64 != [8]byte{} {
		ids = append(ids, nvme.NamespaceID{Type: nvme.IDTypeEUI64, ID: slices.Clone(n.EUI64[:])})
	}
	if n.NGUID != [16]byte{} {
		ids = append(ids, nvme.NamespaceID{Type: nvme.IDTypeNGUID, ID: slices.Clone(n.NGUID[:])})
	}
	if n.UUID != uuid.Nil {
		ids = append(ids, nvme.NamespaceID{Type: nvme.IDTypeUUID, ID: slices.Clone(n.UUID[:])})
	}
	ids = append(ids, nvme.NamespaceID{Type: nvme.IDTypeCSI, ID: []byte{byte(nvme.CSINVM)}})
	return nvme.AppendNamespaceIDs(nil, ids...)
}

// Independent makes CNS 08h (Base section 5.1.13.2.8).
func (n *Namespace) Independent() []byte {
	id := &nvme.IdentifyNamespaceIndependent{
		NMIC: nvme.NMICShared, RESCAP: n.Reservations, NSATTR: n.nsattr(),
		ENDGID: n.EnduranceGroup, ANAGRPID: n.ANAGroup,
	}
	if id.ENDGID != 0 {
		id.NSFEAT = nvme.IndependentRotational
	}
	if n.Ready {
		id.NSTAT = nvme.NSTATReady
	}
	return nvme.Append(nil, id)
}
