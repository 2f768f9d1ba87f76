package controlplane

import (
	"errors"

	"golang.org/x/sys/unix"
)

// port is a TCP port of 127.0.0.1 that nobody else is given while the
// reservation is held.
type port struct {
	number int
	socket int
}

// reservePort has the kernel choose a free port and keeps it by a socket that is
// bound but does not listen. A server that sets SO_REUSEPORT can listen on it
// all the same, so the port cannot be lost between choosing and using it.
func reservePort() (*port, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(socket)
	number, err := bindReusable(socket)
	if err != nil {
		return nil, errors.Join(err, unix.Close(socket))
	}
	return &port{number: number, socket: socket}, nil
}

func bindReusable(socket int) (int, error) {
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return 0, err
	}
	if err := unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	address, err := unix.Getsockname(socket)
	if err != nil {
		return 0, err
	}
	inet, ok := address.(*unix.SockaddrInet4)
	if !ok {
		return 0, errors.New("the socket has no IPv4 address")
	}
	return inet.Port, nil
}

func (p *port) release() error { return unix.Close(p.socket) }
