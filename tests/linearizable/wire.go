package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// A request that got no reply in this time counts as one whose effect is unknown. Pauses are shorter.
const patience = 3 * time.Second

// refusal is an error reply.
type refusal string

func (r refusal) Error() string { return string(r) }

// conn is a connection that speaks RESP2.
type conn struct {
	net.Conn
	in *bufio.Reader
}

func dial(address string) (*conn, error) {
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	c, err := net.DialTimeout(network, address, time.Second)
	if err != nil {
		return nil, err
	}
	return &conn{c, bufio.NewReader(c)}, nil
}

// do sends all requests at once and reads their replies. Words are separated by blanks. An error means that some
// effects are unknown.
func (c *conn) do(requests ...string) ([]any, error) {
	var out strings.Builder
	for _, request := range requests {
		words := strings.Fields(request)
		fmt.Fprintf(&out, "*%d\r\n", len(words))
		for _, word := range words {
			fmt.Fprintf(&out, "$%d\r\n%s\r\n", len(word), word)
		}
	}
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, out.String()); err != nil {
		return nil, err
	}
	replies := make([]any, len(requests))
	for i := range replies {
		var err error
		if replies[i], err = c.reply(); err != nil {
			return nil, err
		}
	}
	return replies, nil
}

// reply reads a string, an int64, a []any, a refusal or nil.
func (c *conn) reply() (any, error) {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("an empty line")
	}
	kind, rest := line[0], line[1:]
	if kind == '+' {
		return rest, nil
	}
	if kind == '-' {
		return refusal(rest), nil
	}
	number, err := strconv.ParseInt(rest, 10, 64)
	if err != nil || kind == ':' {
		return number, err
	}
	if number < 0 {
		return nil, nil
	}
	switch kind {
	case '$':
		text := make([]byte, number+2)
		_, err := io.ReadFull(c.in, text)
		return string(text[:number]), err
	case '*':
		list := make([]any, number)
		for i := range list {
			if list[i], err = c.reply(); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, fmt.Errorf("not RESP2: %q", line)
}

// ask opens a connection for one request.
func ask(address, request string) (any, error) {
	c, err := dial(address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	replies, err := c.do(request)
	if err != nil {
		return nil, err
	}
	return replies[0], nil
}
