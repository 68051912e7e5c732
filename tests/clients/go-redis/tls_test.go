package clients

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"
)

// freeAddress gives one below those that the system gives to clients and to listeners on any port.
func freeAddress() *net.TCPAddr {
	for {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 12_000+rand.Intn(10_000)))
		if err == nil {
			defer listener.Close()
			return listener.Addr().(*net.TCPAddr)
		}
	}
}

// overTLS has the server speak TLS on a free port, and gives a client there with a certificate of its own.
func (s *server) overTLS(t *testing.T, ctx context.Context) *redis.Client {
	t.Helper()
	file := func(name string) string { return filepath.Join(os.Getenv("TLS_CERTIFICATES"), name) }
	address := freeAddress()
	config := []any{"CONFIG", "SET", "tls-cert-file", file("server.crt"), "tls-key-file", file("server.key"),
		"tls-ca-cert-file", file("ca.crt"), "tls-port", address.Port}
	if err := s.connect(t, nil).Do(ctx, config...).Err(); err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(must(os.ReadFile(file("ca.crt")))(t))
	own := must(tls.LoadX509KeyPair(file("client.crt"), file("client.key")))(t)
	return s.connect(t, func(options *redis.Options) {
		options.Network, options.Addr = "tcp", address.String()
		options.TLSConfig = &tls.Config{RootCAs: authorities, Certificates: []tls.Certificate{own}}
	})
}

func TestValuesAndMessagesGoOverTLS(t *testing.T) {
	ctx, s, _ := begin(t)
	client := s.overTLS(t, ctx)
	sideBySide(t, 8, func(number int) error {
		key, value := fmt.Sprint("large:", number), bytes.Repeat([]byte{byte(number)}, 2_000_000)
		if err := client.Set(ctx, key, value, 0).Err(); err != nil {
			return err
		}
		got, err := client.Get(ctx, key).Bytes()
		if err == nil && !bytes.Equal(got, value) {
			err = fmt.Errorf("%d got another value", number)
		}
		return err
	})
	listener := client.Subscribe(ctx, "news")
	defer listener.Close()
	must(listener.Receive(ctx))(t)
	for number := range 100 {
		expect(t, client.Publish(ctx, "news", number).Val(), 1)
		expect(t, must(listener.ReceiveMessage(ctx))(t).Payload, number)
	}
}
