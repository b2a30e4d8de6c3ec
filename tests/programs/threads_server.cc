// A server with a thread for each connection, and clients that check each answer.
//
//   threads_server PORT                    serves until it is killed
//   threads_server PORT CLIENTS            asks until its input ends, then says how that went, as JSON
//
// A request is a line with a number; the answer is a line with what many small blocks add up to.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static uint64_t answer(uint64_t number) {
    std::vector<std::unique_ptr<std::string>> kept;
    for (uint64_t n = 0; n <= number % 50; ++n)
        kept.push_back(std::make_unique<std::string>(16 + (number * n) % 200, char('a' + n % 26)));
    uint64_t sum = number;
    for (auto const& text : kept)
        sum = sum * 31 + text->size() + uint64_t(text->back());
    return sum;
}

static sockaddr_in address(char const* port) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(uint16_t(atoi(port)));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return to;
}

static void at_once(int connection) {
    int one = 1;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

// A line without its end; false when there is none any more.
static bool line(int connection, std::string& text) {
    text.clear();
    char c;
    while (read(connection, &c, 1) == 1) {
        if (c == '\n')
            return true;
        text += c;
    }
    return false;
}

static bool say(int connection, uint64_t number) {
    auto const text = std::to_string(number) + "\n";
    return write(connection, text.data(), text.size()) == ssize_t(text.size());
}

static void serve(int connection) {
    at_once(connection);
    for (std::string text; line(connection, text);)
        if (!say(connection, answer(strtoull(text.c_str(), nullptr, 10))))
            break;
    close(connection);
}

static int server(char const* port) {
    int const listening = socket(AF_INET, SOCK_STREAM, 0);
    int one = 1;
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    auto const at = address(port);
    if (bind(listening, reinterpret_cast<sockaddr const*>(&at), sizeof at) != 0 || listen(listening, 128) != 0) {
        perror("listen");
        return 1;
    }
    puts("up");
    fflush(stdout);
    for (;;) {
        int const connection = accept(listening, nullptr, nullptr);
        if (connection < 0) {
            perror("accept");
            return 1;
        }
        std::thread(serve, connection).detach();
    }
}

static std::atomic<bool> over{false};

struct Said {
    std::vector<double> times;
    uint64_t wrong = 0;
};

static void ask(char const* port, uint64_t seed, Said& said) {
    int const connection = socket(AF_INET, SOCK_STREAM, 0);
    auto const to = address(port);
    if (connect(connection, reinterpret_cast<sockaddr const*>(&to), sizeof to) != 0) {
        ++said.wrong;
        return;
    }
    at_once(connection);
    std::string text;
    for (uint64_t number = seed; !over; number = number * 6364136223846793005 + 1442695040888963407) {
        auto const begun = std::chrono::steady_clock::now();
        bool const right = say(connection, number) && line(connection, text) &&
                           strtoull(text.c_str(), nullptr, 10) == answer(number);
        std::chrono::duration<double, std::milli> const took = std::chrono::steady_clock::now() - begun;
        said.times.push_back(took.count());
        if (!right) {
            ++said.wrong;
            break;
        }
        usleep(5000);
    }
    close(connection);
}

static int clients(char const* port, size_t count) {
    std::vector<Said> said(count);
    std::vector<std::thread> threads;
    for (size_t n = 0; n < count; ++n)
        threads.emplace_back(ask, port, n + 1, std::ref(said[n]));
    char c;
    while (read(0, &c, 1) > 0) {
    }
    over = true;
    for (auto& thread : threads)
        thread.join();
    std::vector<double> all;
    uint64_t wrong = 0;
    for (auto const& one : said) {
        all.insert(all.end(), one.times.begin(), one.times.end());
        wrong += one.wrong;
    }
    if (all.empty())
        return 1;
    std::sort(all.begin(), all.end());
    printf("{\"requests\": %zu, \"wrong\": %llu, \"median\": %.3f, \"p99\": %.3f, \"most\": %.3f}\n", all.size(),
           static_cast<unsigned long long>(wrong), all[all.size() / 2], all[all.size() * 99 / 100], all.back());
    return 0;
}

int main(int argc, char** argv) {
    if (argc == 2)
        return server(argv[1]);
    if (argc == 3)
        return clients(argv[1], size_t(atoi(argv[2])));
    fputs("usage: threads_server PORT [CLIENTS]\n", stderr);
    return 2;
}
