package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// op is one request of a client, and its reply. Histories are files with one of these on each line.
type op struct {
	Client int    `json:"client"`
	Key    string `json:"key"`
	Kind   string `json:"kind"`
	// The value, or the owner of a lock.
	Value string `json:"value,omitempty"`
	// The value that `cas` expects.
	Old string `json:"old,omitempty"`
	// The fence that `release` names.
	Fence int64 `json:"fence,omitempty"`
	// Nanoseconds since the beginning.
	Call   int64 `json:"call"`
	Return int64 `json:"return"`
	// Whether there was no reply, or none that counts: the request had its effect at any time after Call, or never.
	Unknown bool   `json:"unknown,omitempty"`
	Text    string `json:"text,omitempty"`
	Number  int64  `json:"number,omitempty"`
}

func model(init any, step func(state any, o op) (bool, any)) porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			keys := map[string][]porcupine.Operation{}
			for _, operation := range history {
				key := operation.Input.(op).Key
				keys[key] = append(keys[key], operation)
			}
			var parts [][]porcupine.Operation
			for _, part := range keys {
				parts = append(parts, part)
			}
			return parts
		},
		Init:              func() any { return init },
		Step:              func(state, input, _ any) (bool, any) { return step(state, input.(op)) },
		DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
	}
}

// A register: a value that is set, read, and set if it has a value. "" is no value.
var register = model("", func(state any, o op) (bool, any) {
	value := state.(string)
	switch o.Kind {
	case "set":
		return true, o.Value
	case "get":
		return o.Text == value, value
	case "cas":
		is := value == o.Old && value != ""
		if is {
			value = o.Value
		}
		return o.Unknown || is == (o.Text == "OK"), value
	}
	return false, value
})

// grant is the state of a lock: its holder, if any, and the fence; 0 if nobody has seen the fence.
type grant struct {
	owner         string
	fence, newest int64
}

// A lock: granted to one owner at a time, each grant with a fence above all others. Asking again gives the same grant.
var lock = model(grant{}, func(state any, o op) (bool, any) {
	g := state.(grant)
	switch o.Kind {
	case "acquire":
		free := g.owner == ""
		switch {
		case o.Unknown && free:
			return true, grant{owner: o.Value, newest: g.newest}
		case o.Unknown:
			return true, g
		case o.Number == 0:
			return g.owner == o.Text && o.Text != o.Value, g
		case free || g.owner == o.Value && g.fence == 0:
			return o.Number > g.newest, grant{o.Value, o.Number, o.Number}
		}
		return g.owner == o.Value && g.fence == o.Number, g
	case "release":
		holds := g.owner == o.Value && (o.Fence == 0 || g.fence == o.Fence)
		if !holds {
			return o.Unknown || o.Number < 0, g
		}
		return o.Unknown || o.Number == 0, grant{newest: g.newest}
	}
	return false, g
})

// holder is one of a semaphore's; fence 0: nobody has seen it.
type holder struct {
	owner string
	fence int64
}

// held is the state of a semaphore: its holders, the free places last.
type held struct {
	holders [permits]holder
	newest  int64
}

// A semaphore: granted to so many owners at a time, each grant with a fence above all others.
var semaphore = model(held{}, func(state any, o op) (bool, any) {
	s := state.(held)
	at, free := slices.IndexFunc(s.holders[:], func(h holder) bool { return h.owner == o.Value }), slices.Index(s.holders[:], holder{})
	sorted := func() held {
		slices.SortFunc(s.holders[:], func(a, b holder) int { return strings.Compare(b.owner, a.owner) })
		return s
	}
	switch o.Kind {
	case "acquire":
		switch {
		case at >= 0 && s.holders[at].fence != 0:
			return o.Unknown || s.holders[at].fence == o.Number, s
		case at < 0 && free < 0:
			return o.Unknown || o.Number == 0, s
		case at < 0:
			at = free
		}
		if o.Unknown {
			s.holders[at] = holder{owner: o.Value}
			return true, sorted()
		}
		// A grant that nobody has seen may be older than those that followed.
		fits := o.Number > s.newest || o.Number > 0 && s.holders[at].owner == o.Value
		s.holders[at], s.newest = holder{o.Value, o.Number}, max(s.newest, o.Number)
		return fits, sorted()
	case "release":
		is := at >= 0 && (o.Fence == 0 || s.holders[at].fence == 0 || s.holders[at].fence == o.Fence)
		if is {
			s.holders[at] = holder{}
		}
		return o.Unknown || is == (o.Number == 1), sorted()
	}
	return false, s
})

// A queue: what is pushed first is popped first. The state has a comma after each value.
var queue = model("", func(state any, o op) (bool, any) {
	values := state.(string)
	switch o.Kind {
	case "push":
		values += o.Value + ","
		// The entry of a stream gets an ID in place of its number.
		return o.Unknown || o.Text != "" || o.Number == int64(strings.Count(values, ",")), values
	case "pop":
		first, rest, _ := strings.Cut(values, ",")
		return o.Unknown || first == o.Text, rest
	}
	return false, values
})
