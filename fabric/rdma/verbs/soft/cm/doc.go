// Package cm implements the InfiniBand communication manager in user space: it makes and ends
// reliable connections between queue pairs over RoCEv2 (InfiniBand Architecture Specification,
// volume 1, release 1.4, chapter 12, and the RDMA IP CM service, annex A11).
//
// Queue pair 1 exchanges management datagrams (MADs) of 256 bytes. The active side is on the left:
//
//	Connect       REQ  ->          ConnectRequest; CreateQP
//	                   <-  MRA     a repeated REQ finds the program still busy
//	                   <-  REP     Accept; the queue pair receives and sends
//	queue pair ready
//	Established   RTU  ->          Established, also by the first packet of the connection
//
//	                   <-  REJ     instead of REP: Reject, or the manager refuses by itself
//
//	Disconnect    DREQ ->          Disconnected; either side may begin
//	Disconnected       <-  DREP    Disconnect
//	timewait                       timewait
//
// Datagrams can get lost. The side that waits for an answer sends its message again after a time,
// and gives up after a number of tries. A message that arrives again is answered from the state of
// the connection. States, timers and answers are in conn.go, active.go and passive.go; mad.go is
// the format of the messages.
//
// There is no authentication: anybody can forge a source address. Therefore, a message for a
// connection must come from the address of its peer and have both communication IDs, which are
// random. Strangers can make us hold only a bounded number of connections (limits.go), and no
// answer is larger than the message that it answers.
//
// A Manager holds its lock during every step. It may call queue pairs, which wait for their engine.
// The engine never waits for the Manager (Manager.note).
package cm
